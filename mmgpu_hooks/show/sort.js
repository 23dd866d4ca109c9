'use strict';
// A button in each heading sorts the rows of its table; without a script they stay.
for (const table of document.querySelectorAll('table.sortable')) {
  const heads = Array.from(table.tHead.rows[0].cells);
  const body = table.tBodies[0];
  heads.forEach((head, column) => {
    const button = document.createElement('button');
    button.type = 'button';
    button.append(...head.childNodes);
    head.append(button);
    const isFigure = head.classList.contains('figures');
    const read = (row) => {
      const text = row.cells[column].textContent;
      return isFigure ? parseFloat(text.replaceAll(',', '')) : text;
    };
    button.addEventListener('click', () => {
      const before = head.getAttribute('aria-sort');
      // of figures the largest are asked for first
      const isDown = before ? before === 'ascending' : isFigure;
      heads.forEach((other) => other.removeAttribute('aria-sort'));
      head.setAttribute('aria-sort', isDown ? 'descending' : 'ascending');
      const known = [], unknown = [];
      for (const row of body.rows) {
        (Number.isNaN(read(row)) ? unknown : known).push(row);
      }
      known.sort((a, b) => {
        const [first, second] = [read(a), read(b)];
        const order = isFigure ? first - second : first.localeCompare(second);
        return isDown ? -order : order;
      });
      body.append(...known, ...unknown);
    });
  });
}
