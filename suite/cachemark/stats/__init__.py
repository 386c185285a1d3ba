"""Pure statistics: tests, intervals and change points. No outcome, store or device is known here."""
