"use strict";
// A click on a heading sorts its table: numbers by size, with their units, what is no number last.
const units = { k: 1e3, M: 1e6, G: 1e9, T: 1e12 };
function key(text) {
  const found = text.replace(/,(?=\d{3})/g, "").match(/^[<>≤×\s]*([+-]?\d*\.?\d+(?:e[+-]?\d+)?)\s*([kMGT](?=B|$|\s))?/);
  return found ? parseFloat(found[1]) * (units[found[2]] || 1) : NaN;
}
function before(a, b, numbers) {
  if (!numbers) return a.localeCompare(b, "en", { numeric: true });
  const [x, y] = [key(a), key(b)];
  return Number.isNaN(x) || Number.isNaN(y) ? NaN : x - y;
}
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const heading = button.parentElement, table = heading.closest("table"), body = table.tBodies[0];
    const column = heading.cellIndex, numbers = heading.classList.contains("n");
    const sign = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    const text = (row) => row.cells[column].textContent.trim();
    const rows = [...body.rows].sort((a, b) => {
      const order = before(text(a), text(b), numbers);
      if (Number.isNaN(order)) return Number.isNaN(key(text(a))) - Number.isNaN(key(text(b)));
      return sign * order;
    });
    for (const other of table.querySelectorAll("th[aria-sort]")) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
    body.append(...rows);
  });
}
