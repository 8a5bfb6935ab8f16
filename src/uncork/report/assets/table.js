// A table of any length: only the rows in sight are in the document.
import { element, whole } from "./text.js";

const AROUND = 8; // rows kept ready above and below what is in sight
const PRINTED = 1000;
const WIDE_ROW = 42, NARROW_ROW = 64, HEADER = 40;
const narrow = matchMedia("(max-width: 44rem)");

/**
 * Items are an array, or anything with a length and at(place) that gives undefined for what is still on its way; `arrived` draws such
 * rows again.
 *
 * columns: [{key, title, className, track, sortable}]; fill(cell, column, item) draws one cell of an item;
 * opened(item, place) is called for the row that was chosen; sorted(key) when a heading was.
 */
export class Table {
  constructor(root, { columns, caption, fill, opened, sorted }) {
    Object.assign(this, { columns, fill, opened, items: [], active: 0, shown: new Map() });
    this.grid = element("div", "grid");
    this.grid.setAttribute("role", "grid");
    this.grid.setAttribute("aria-label", caption);
    this.grid.setAttribute("aria-colcount", columns.length);
    this.scroller = element("div", "scroller");
    this.scroller.setAttribute("role", "rowgroup");
    this.header = this.makeHeader(sorted);
    this.space = element("div", "space");
    this.space.setAttribute("role", "presentation");
    this.space.style.position = "relative";
    this.scroller.append(this.header, this.space);
    this.grid.style.setProperty("--tracks", columns.map(column => column.track).join(" "));
    this.grid.append(this.scroller);
    root.replaceChildren(this.grid);
    this.scroller.addEventListener("scroll", () => this.later(), { passive: true });
    this.space.addEventListener("click", event => this.clicked(event));
    this.space.addEventListener("keydown", event => this.pressed(event));
    this.space.addEventListener("focusin", event => this.focused(event));
    narrow.addEventListener("change", () => this.show(this.items, this.order));
    addEventListener("resize", () => this.later());
    addEventListener("beforeprint", () => this.print());
    addEventListener("afterprint", () => this.show(this.items, this.order));
  }

  makeHeader(sorted) {
    const line = element("div", "line header");
    line.setAttribute("role", "row");
    line.setAttribute("aria-rowindex", 1);
    for (const column of this.columns) {
      const cell = element("div", "cell-" + column.key + (column.number ? " number" : ""));
      cell.setAttribute("role", "columnheader");
      cell.dataset.key = column.key;
      if (column.sortable) {
        const button = element("button", "", column.title);
        button.type = "button";
        button.addEventListener("click", () => sorted(column.key));
        cell.append(button);
      } else cell.append(element("span", "", column.title));
      line.append(cell);
    }
    return line;
  }

  /** Show these items, in this order of theirs: [column key, 1 or −1]. */
  show(items, order, keepPlace = true) {
    this.items = items;
    this.order = order;
    this.row = narrow.matches ? NARROW_ROW : WIDE_ROW;
    this.active = Math.min(this.active, Math.max(items.length - 1, 0));
    if (!keepPlace) {
      this.active = 0;
      this.scroller.scrollTop = 0;
    }
    this.grid.style.setProperty("--row", this.row + "px");
    this.grid.setAttribute("aria-rowcount", items.length + 1);
    for (const cell of this.header.children) {
      if (order && cell.dataset.key === order[0]) cell.setAttribute("aria-sort", order[1] > 0 ? "ascending" : "descending");
      else cell.removeAttribute("aria-sort");
    }
    this.space.replaceChildren();
    this.shown.clear();
    const header = narrow.matches ? 0 : HEADER;
    this.space.style.height = (items.length ? items.length * this.row : 120) + "px";
    this.scroller.style.height = header + (items.length ? items.length * this.row : 120) + 2 + "px";
    if (items.length) this.draw();
    else this.space.append(element("p", "empty", "Nothing here."));
  }

  later() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = 0;
      this.draw();
    });
  }

  draw() {
    if (!this.items.length) return;
    const top = Math.max(0, this.scroller.scrollTop - HEADER);
    const first = Math.max(0, Math.floor(top / this.row) - AROUND);
    const last = Math.min(this.items.length, Math.ceil((top + this.scroller.clientHeight + HEADER) / this.row) + AROUND);
    for (const [place, line] of this.shown) {
      if ((place < first || place >= last) && place !== this.active) {
        line.remove();
        this.shown.delete(place);
      }
    }
    for (let place = first; place < last; place++) if (!this.shown.has(place)) this.add(place);
    if (!this.shown.has(this.active)) this.add(this.active);
  }

  add(place, isLast = false) {
    const line = element("div", "line row"), item = this.items.at(place);
    line.setAttribute("role", "row");
    line.setAttribute("aria-rowindex", place + 2);
    line.tabIndex = place === this.active ? 0 : -1;
    line.dataset.place = place;
    line.style.transform = `translateY(${place * this.row}px)`;
    for (const column of this.columns) {
      const cell = element("div", "cell-" + column.key + (column.number ? " number" : ""));
      cell.setAttribute("role", "gridcell");
      if (item !== undefined) this.fill(cell, column.key, item);
      line.append(cell);
    }
    line.classList.toggle("waiting", item === undefined);
    // Rows stand in the document in their order, whichever way one scrolls.
    let after = null;
    for (const [other, sibling] of isLast ? [] : this.shown) {
      if (other > place && (after === null || other < Number(after.dataset.place))) after = sibling;
    }
    this.space.insertBefore(line, after);
    this.shown.set(place, line);
  }

  placeOf(event) {
    const line = event.target.closest(".row");
    return line ? Number(line.dataset.place) : -1;
  }

  clicked(event) {
    const place = this.placeOf(event);
    if (place < 0) return;
    this.activate(place, true);
    this.open(place);
  }

  open(place) {
    const item = this.items.at(place);
    if (item !== undefined) this.opened(item, place);
  }

  /** Draw the rows that had nothing in them. */
  arrived() {
    for (const [place, line] of this.shown) {
      if (!line.classList.contains("waiting")) continue;
      const focused = line === document.activeElement;
      line.remove();
      this.shown.delete(place);
      this.add(place);
      if (focused) this.shown.get(place).focus({ preventScroll: true });
    }
  }

  focused(event) {
    const place = this.placeOf(event);
    if (place >= 0 && place !== this.active) this.activate(place, false);
  }

  pressed(event) {
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / this.row) - 2);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key === "Enter" || event.key === " ") this.open(this.active);
    else if (event.key in steps) this.activate(this.active + steps[event.key], true);
    else return;
    event.preventDefault();
  }

  /** Make a row the one that the keyboard stands on. */
  activate(place, focus) {
    const next = Math.min(Math.max(place, 0), this.items.length - 1);
    const before = this.shown.get(this.active);
    if (before) before.tabIndex = -1;
    this.active = next;
    const top = next * this.row, height = this.scroller.clientHeight - (narrow.matches ? 0 : HEADER);
    if (top < this.scroller.scrollTop) this.scroller.scrollTop = top;
    else if (top + this.row > this.scroller.scrollTop + height) this.scroller.scrollTop = top + this.row - height;
    this.draw();
    const line = this.shown.get(next);
    line.tabIndex = 0;
    if (focus) line.focus({ preventScroll: true });
  }

  /** Paper does not scroll: the first rows, all in the document. */
  print() {
    const rest = this.items.length - PRINTED;
    this.space.replaceChildren();
    this.shown.clear();
    for (let place = 0; place < Math.min(this.items.length, PRINTED); place++) this.add(place, true);
    if (rest > 0) this.space.append(element("p", "empty", `and ${whole(rest)} more, in the page itself`));
  }
}
