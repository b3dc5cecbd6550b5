"use strict";
// A click on a heading sorts its table: numbers by size, other texts last.
function key(text) {
  return parseFloat(text.replace(/^[<>≤×\s]+|,(?=\d{3})/g, ""));
}
function before(a, b, numbers) {
  if (!numbers) return a.localeCompare(b, "en", { numeric: true });
  const [x, y] = [key(a), key(b)];
  return Number.isNaN(x) || Number.isNaN(y) ? NaN : x - y;
}
for (const cell of document.querySelectorAll("th")) {
  const button = document.createElement("button");
  button.type = "button";
  button.append(...cell.childNodes);
  cell.append(button);
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
