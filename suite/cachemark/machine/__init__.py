"""The machine that measures: devices, leases, clocks, rates and what disturbs them."""
