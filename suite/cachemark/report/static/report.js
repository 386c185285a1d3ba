"use strict";
(function () {
  const root = document.documentElement;
  const all = (selector, within) => Array.from((within || document).querySelectorAll(selector));
  const make = (tag, attributes, ...children) => {
    const made = document.createElement(tag);
    Object.entries(attributes || {}).forEach(([name, value]) => made.setAttribute(name, value));
    made.append(...children);
    return made;
  };

  /* Theme: the system's, until the reader chooses; a page from disk may have no storage. */
  const button = document.getElementById("theme");
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const store = {
    get() { try { return localStorage.getItem("cachemark-theme"); } catch (_) { return null; } },
    set(value) { try { localStorage.setItem("cachemark-theme", value); } catch (_) { /* not kept */ } },
  };
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const label = () => { button.textContent = dark() ? "Light theme" : "Dark theme"; };
  const chosen = store.get();
  if (chosen === "dark" || chosen === "light") root.dataset.theme = chosen;
  button.hidden = false;
  label();
  system.addEventListener("change", label);
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    store.set(root.dataset.theme);
    label();
  });

  /* Tabs: the contents become tabs, the parts their panels. Whatever has an id can be linked to: its panel opens first. */
  const list = document.getElementById("tabs"), tabs = all("a", list), panels = all(".panel");
  list.setAttribute("role", "tablist");
  tabs.forEach((tab, k) => {
    tab.setAttribute("role", "tab");
    tab.id = "tab-" + panels[k].id;
    tab.setAttribute("aria-controls", panels[k].id);
    panels[k].setAttribute("role", "tabpanel");
    panels[k].setAttribute("aria-labelledby", tab.id);
  });
  function show(panel) {
    panels.forEach((other, k) => {
      other.hidden = other !== panel;
      tabs[k].setAttribute("aria-selected", String(other === panel));
      tabs[k].tabIndex = other === panel ? 0 : -1;
    });
    unpack(panel);
    const tab = tabs[panels.indexOf(panel)];
    list.scrollTo({ left: tab.offsetLeft - (list.clientWidth - tab.offsetWidth) / 2 });
  }
  /* The large panels of a page with many cases are compressed until they are opened, and each picture is stored once. */
  const pictures = JSON.parse((document.getElementById("pictures") || { textContent: "[]" }).textContent);
  const packed = (panel) => panel.querySelector("script.packed");
  function fill(within) {
    all("img[data-picture]", within).forEach((image) => { image.src = pictures[image.dataset.picture]; });
    table(within);
    all(".term", within).forEach((term) => { term.tabIndex = 0; explain(term, meanings.get(term.dataset.term) || ""); });
    tell(within);
    chart(within);
    picture(within);
  }
  async function unpack(panel) {
    const data = packed(panel);
    if (!data) return;
    const bytes = Uint8Array.from(atob(data.textContent), (char) => char.charCodeAt(0));
    data.className = "";
    const html = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
    data.previousElementSibling.remove();
    data.insertAdjacentHTML("beforebegin", html);
    data.remove();
    fill(panel);
    look();
  }
  function follow() {
    let target = null, name = "";
    try { name = decodeURIComponent(location.hash.slice(1)); target = document.getElementById(name); } catch (_) { /* no such place */ }
    const panel = target && target.closest(".panel");
    if (!panel) {
      const holder = document.getElementById(name.startsWith("c-") ? "cases" : name.replace(/-m\d+$/, ""));
      if (!target && holder && packed(holder)) unpack(holder).then(follow);
      else if (!target) show(panels[0]);
      return;
    }
    show(panel);
    if (target.tagName === "DETAILS") target.open = true;
    if (target === panel) { if (window.scrollY > list.offsetTop) window.scrollTo(0, list.offsetTop); return; }
    target.scrollIntoView({ block: "start" });
    const heading = target.querySelector("summary") || target;
    if (heading.tabIndex < 0) heading.tabIndex = -1;
    heading.focus({ preventScroll: true });
  }
  /* Not by location.hash, which would take the focus away from the tab. */
  function choose(k) {
    history.pushState(null, "", "#" + panels[k].id);
    follow();
    tabs[k].focus();
  }
  tabs.forEach((tab, k) => tab.addEventListener("click", (event) => { event.preventDefault(); choose(k); }));
  list.addEventListener("keydown", (event) => {
    const at = tabs.indexOf(document.activeElement), last = tabs.length - 1;
    const next = { ArrowRight: at === last ? 0 : at + 1, ArrowLeft: at === 0 ? last : at - 1, Home: 0, End: last }[event.key];
    if (at < 0 || next === undefined) return;
    event.preventDefault();
    choose(next);
  });

  /* What something means: on hover, on focus, and to a screen reader. */
  const tip = document.getElementById("tip");
  function place(x, y, low) {
    tip.hidden = false;
    tip.style.left = Math.max(4, Math.min(x, window.innerWidth - tip.offsetWidth - 8)) + "px";
    tip.style.top = (y + tip.offsetHeight > window.innerHeight ? Math.max(4, low - tip.offsetHeight - 8) : y) + "px";
  }
  const hush = () => { tip.hidden = true; };
  function explain(part, text, holder) {
    const show = () => {
      tip.textContent = text;
      const box = part.getBoundingClientRect();
      place(box.left, box.bottom + 6, box.top);
      (holder || part).setAttribute("aria-describedby", "tip");
    };
    const leave = () => { hush(); (holder || part).removeAttribute("aria-describedby"); };
    part.addEventListener("pointerenter", show);
    part.addEventListener("pointerleave", leave);
    (holder || part).addEventListener("focus", show);
    (holder || part).addEventListener("blur", leave);
  }
  function tell(within) {
    all("[title]", within).forEach((part) => {
      const text = part.title;
      part.removeAttribute("title");
      if (!part.matches("a, button")) part.tabIndex = 0;
      explain(part, text);
    });
  }
  const meanings = new Map(all("#glossary > div").map((entry) => [entry.firstElementChild.textContent, entry.lastElementChild.textContent]));
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hush(); });

  const text = (part) => part.textContent.replace(/\s+/g, " ").trim();

  /* Rows of a table that can be sorted and filtered. */
  function rowsOf(body) {
    const rows = Array.from(body.rows);
    return {
      count: rows.length,
      text: (k) => text(rows[k]),
      value: (k, key) => value(rows[k], key),
      sort(compare) {
        const order = Array.from(rows.keys());
        if (compare) order.sort(compare);
        body.replaceChildren(...order.map((k) => rows[k]));
      },
      keep(fits) { rows.forEach((row, k) => { row.hidden = Boolean(fits) && !fits.has(k); }); },
    };
  }

  /* Sorting: best first, worst first, as it was. Rows without the figure stay last. */
  const SCALES = { ms: 1e-3, KiB: 1024, MiB: 1024 ** 2, GiB: 1024 ** 3, TiB: 1024 ** 4, kFLOP: 1e3, MFLOP: 1e6, GFLOP: 1e9, TFLOP: 1e12, PFLOP: 1e15 };
  function figure(text) {
    const share = /^(\d+)\/(\d+)$/.exec(text.trim());
    if (share) return share[1] / share[2];
    const found = /^([−-]?[\d.]+(?:e[−-]?\d+)?)\s*(\S*)/.exec(text.trim());
    return found ? Number(found[1].replace(/−/g, "-")) * (SCALES[found[2]] || 1) : null;
  }
  function value(row, key) {
    if (key === "name") return text(row.querySelector("th"));
    const cell = typeof key === "number" ? row.cells[key] : row.querySelector('td[data-k="' + key + '"]');
    if (!cell) return null;
    if (cell.dataset.v !== undefined) return Number(cell.dataset.v);
    if (typeof key !== "number") return null;
    return cell.classList.contains("num") ? figure(cell.textContent) : cell.textContent.trim();
  }
  const collator = new Intl.Collator();
  function by(rows, key, sign) {
    const values = Array.from({ length: rows.count }, (_, k) => rows.value(k, key));
    return (a, b) => {
      const x = values[a], y = values[b];
      if (x === null || y === null) return (x === null) - (y === null);
      return sign * (typeof x === "string" ? collator.compare(x, String(y)) : x - y);
    };
  }
  function sortable(heads, rows, keys, bests, turned) {
    heads.forEach((head, k) => {
      const button = make("button", { type: "button" }, ...head.childNodes);
      head.append(button);
      head.setAttribute("aria-sort", "none");
      if (head.title) { explain(head, head.title, button); head.removeAttribute("title"); }
      const best = bests[k], worst = best === "descending" ? "ascending" : "descending";
      button.addEventListener("click", () => {
        const now = head.getAttribute("aria-sort"), next = now === "none" ? best : now === best ? worst : "none";
        heads.forEach((other) => other.setAttribute("aria-sort", other === head ? next : "none"));
        turned(next !== "none");
        rows.sort(next === "none" ? null : by(rows, keys[k], next === "ascending" ? 1 : -1));
      });
    });
  }

  /* Filtering: every word must be in the row's text; "-word" must not. */
  function filter(before, what, count, text, keep) {
    if (count < 3) return;
    const box = make("input", { type: "search", placeholder: "e.g. LineAR 1/4 -R-KV" }), found = make("output", {});
    before.before(make("p", { class: "filter" }, make("label", {}, "Filter ", what, " ", box), " ", found));
    let texts = null;
    box.addEventListener("input", () => {
      texts = texts || Array.from({ length: count }, (_, k) => text(k).toLowerCase());
      const wanted = box.value.toLowerCase().split(/\s+/).filter((word) => word && word !== "-"), fits = new Set();
      texts.forEach((one, k) => {
        if (wanted.every((word) => (word[0] === "-" ? !one.includes(word.slice(1)) : one.includes(word)))) fits.add(k);
      });
      keep(wanted.length ? fits : null);
      found.textContent = wanted.length ? fits.size + " of " + count : "";
    });
  }
  function table(within) {
    all("table.headline", within).forEach((table) => {
      const heads = all("th[data-k]", table), body = table.querySelector("tbody.candidates"), rows = rowsOf(body);
      sortable(heads, rows, heads.map((head) => head.dataset.k), heads.map((head) => (head.dataset.best === "higher" ? "descending" : "ascending")),
        (sorted) => body.classList.toggle("sorted", sorted));
      filter(table.closest(".scroll"), "methods", rows.count, rows.text, rows.keep);
    });
    all("table.sorts", within).forEach((table) => {
      const heads = Array.from(table.tHead.rows[0].cells), rows = rowsOf(table.tBodies[0]);
      if (rows.count < 2) return;
      sortable(heads, rows, heads.map((_, k) => k), heads.map(() => "ascending"), () => {});
      if (table.matches(".filters")) filter(table.closest(".scroll"), "rows", rows.count, rows.text, rows.keep);
    });
    all(".ledger.filters", within).forEach((list_) => {
      const cases = all(".case", list_), text = (k) => cases[k].querySelector("summary").textContent.replace(/\s+/g, " ");
      filter(list_, "cases", cases.length, text, (fits) => cases.forEach((item, k) => { item.hidden = Boolean(fits) && !fits.has(k); }));
    });
  }

  /* Charts: tooltips of marks, and highlighting of one method. */
  function chart(within) {
    all(".chart svg", within).forEach((drawing) => {
      const marks = new Map(all("[data-series]", drawing).map((mark) => {
        const title = mark.querySelector("title"), lines = title.textContent.split(" · ");
        title.remove();
        return [mark, lines];
      }));
      drawing.addEventListener("pointermove", (event) => {
        const lines = marks.get(event.target);
        if (!lines) { hush(); return; }
        tip.replaceChildren(make("b", {}, lines[0]), ...lines.slice(1).flatMap((line, k) => (k ? [make("br"), line] : [line])));
        place(event.clientX + 14, event.clientY + 16, event.clientY - 2);
      });
      drawing.addEventListener("pointerleave", hush);
    });
    all(".legend", within).forEach((legend) => {
      const charts = legend.nextElementSibling, keys = all(".key", legend);
      const light = (key) => {
        charts.classList.toggle("chosen", Boolean(key));
        all("svg [data-series]", charts).forEach((mark) => mark.classList.toggle("lit", Boolean(key) && mark.dataset.series === key.dataset.series));
        all('svg [class^="s"]:not([data-series])', charts).forEach((mark) => mark.classList.toggle("lit", Boolean(key) && mark.classList.contains("s" + key.dataset.series)));
      };
      const pressed = () => keys.find((key) => key.getAttribute("aria-pressed") === "true");
      keys.forEach((key) => {
        key.addEventListener("click", () => {
          const on = key.getAttribute("aria-pressed") !== "true";
          keys.forEach((other) => other.setAttribute("aria-pressed", String(on && other === key)));
          light(pressed());
        });
        key.addEventListener("pointerenter", () => light(key));
        key.addEventListener("pointerleave", () => light(pressed()));
      });
    });
  }

  /* Images: one seed of a sprite, full cache, method and their difference; arrows go to the next seed. */
  const zoom = document.getElementById("zoom"), crops = all(".crop", zoom);
  let strip = null, at = 0;
  function draw() {
    const hits = all(".hits button", strip), count = hits.length, source = strip.querySelector(".frame img").src;
    at = (at + count) % count;
    document.getElementById("zoom-title").textContent = hits[at].dataset.title;
    document.getElementById("zoom-name").textContent = strip.dataset.name;
    zoom.style.setProperty("--h", 1 / Number(getComputedStyle(strip).getPropertyValue("--w")));
    crops.forEach((crop) => crop.dataset.lines.split(" ").forEach((line, k) => {
      const image = crop.querySelectorAll("img")[k];
      image.src = source;
      image.style.imageRendering = strip.classList.contains("smooth") ? "auto" : "pixelated";
      image.style.width = "calc(var(--z) * " + count + ")";
      image.style.height = "calc(var(--z) * var(--h) * 2)";
      image.style.transform = "translate(calc(var(--z) * " + -at + "), calc(var(--z) * var(--h) * " + -line + "))";
    }));
  }
  function picture(within) {
    all(".strip", within).forEach((one) => all(".hits button", one).forEach((hit) => hit.addEventListener("click", () => {
      strip = one;
      at = Number(hit.dataset.tile);
      draw();
      zoom.showModal();
    })));
  }
  all("[data-step]", zoom).forEach((button) => button.addEventListener("click", () => { at += Number(button.dataset.step); draw(); }));
  zoom.querySelector("[data-close]").addEventListener("click", () => zoom.close());
  zoom.addEventListener("click", (event) => { if (event.target === zoom) zoom.close(); });
  zoom.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) { at += step; draw(); }
  });

  fill(document);
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#"]');
    if (link && link.getAttribute("href") === location.hash) follow();
  });

  /* A table that is wider than the screen fades at the side where it continues. */
  let frame = 0;
  const fade = () => all(".scroll").forEach((part) => part.classList.toggle("more", part.scrollWidth - part.clientWidth - part.scrollLeft > 8));
  const look = () => { cancelAnimationFrame(frame); frame = requestAnimationFrame(fade); };
  show(panels[0]);
  window.addEventListener("hashchange", follow);
  if (location.hash) follow();
  ["load", "resize", "hashchange"].forEach((name) => window.addEventListener(name, look));
  ["scroll", "toggle", "click"].forEach((name) => document.addEventListener(name, look, true));

  /* Print: open all folded parts except the raw samples, and fold them again afterwards. */
  let folded = [];
  window.addEventListener("beforeprint", () => {
    folded = all("details:not([open], .case)");
    folded.forEach((part) => { part.open = true; });
    panels.forEach((panel) => { panel.dataset.was = String(panel.hidden); panel.hidden = false; });
  });
  window.addEventListener("afterprint", () => {
    folded.forEach((part) => { part.open = false; });
    panels.forEach((panel) => { panel.hidden = panel.dataset.was === "true"; });
  });
})();
