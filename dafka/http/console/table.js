// A table of any length: only the rows that can be seen are in the document.
import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/htm-preact-3.1.1.js";

const ROW = 34;
const AROUND = 12;

/**
 * Show items as rows. Each of `columns` has a name, a title, what to render, and optionally `width`, `number`, `wide`
 * (left out on phones) and `sort` (the order can be chosen).
 */
export function Table({ label, tall, columns, items, keyOf, sort, onSort, selected, onSelect, empty, onEnd, stick }) {
  const scroller = useRef();
  const [range, setRange] = useState([0, 40]);
  const measure = () => {
    const { scrollTop, clientHeight } = scroller.current;
    const first = Math.max(0, Math.floor(scrollTop / ROW) - AROUND);
    const last = first + Math.ceil(clientHeight / ROW) + 2 * AROUND;
    setRange((before) => (before[0] === first && before[1] === last ? before : [first, last]));
    if (onEnd && last >= items.length) onEnd();
  };
  useLayoutEffect(measure, [items.length]);
  useEffect(() => {
    const resized = new ResizeObserver(measure);
    resized.observe(scroller.current);
    return () => resized.disconnect();
  }, [items.length]);
  useEffect(() => {
    if (stick) scroller.current.scrollTop = 0;
  });
  const chosen = selected == null ? -1 : items.findIndex((item) => keyOf(item) === selected);
  const move = (event) => {
    if (!onSelect || event.target !== scroller.current || !items.length) return;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = Math.min(items.length - 1, Math.max(0, chosen + step));
    onSelect(items[next]);
    const top = next * ROW;
    const { scrollTop, clientHeight } = scroller.current;
    if (top < scrollTop) scroller.current.scrollTop = top;
    else if (top + 2 * ROW > scrollTop + clientHeight) scroller.current.scrollTop = top + 2 * ROW - clientHeight;
  };
  const [first, last] = [Math.min(range[0], Math.max(0, items.length - 1)), Math.min(range[1], items.length)];
  const spacer = (rows) => rows > 0 && html`<tr class="spacer" aria-hidden="true"><td style=${{ height: `${rows * ROW}px` }}></td></tr>`;
  return html`<div class=${tall ? "virtual tall" : "virtual"} ref=${scroller} onScroll=${measure} onKeyDown=${move} tabindex="0" role="group" aria-label=${label}>
    <table aria-rowcount=${items.length + 1}>
      <colgroup>
        ${columns.map((column) => html`<col key=${column.name} class=${column.wide ? "wide" : undefined} style=${column.width ? { width: column.width } : undefined} />`)}
      </colgroup>
      <thead>
        <tr aria-rowindex="1">
          ${columns.map((column) => html`<${Heading} key=${column.name} column=${column} sort=${sort} onSort=${onSort} />`)}
        </tr>
      </thead>
      <tbody>
        ${spacer(first)}
        ${items.slice(first, last).map((item, index) => {
          const key = keyOf(item);
          return html`<tr key=${key} aria-rowindex=${first + index + 2} class=${key === selected ? "selected" : undefined}
              onClick=${onSelect && (() => onSelect(item))}>
            ${columns.map((column, place) => html`<${Cell} key=${column.name} column=${column} item=${item} head=${place === 0} />`)}
          </tr>`;
        })}
        ${spacer(items.length - last)}
      </tbody>
    </table>
    ${!items.length && empty}
  </div>`;
}

const classes = (column) => [column.number && "number", column.wide && "wide"].filter(Boolean).join(" ") || undefined;

function Cell({ column, item, head }) {
  if (head) return html`<th scope="row" class=${classes(column)}>${column.render(item)}</th>`;
  return html`<td class=${classes(column)}>${column.render(item)}</td>`;
}

function Heading({ column, sort, onSort }) {
  if (!column.sort) return html`<th scope="col" class=${classes(column)}>${column.title}</th>`;
  const order = sort.name === column.name ? sort.order : null;
  return html`<th scope="col" class=${classes(column)} aria-sort=${order ?? undefined}>
    <button class="sort" onClick=${() => onSort(column.name)}>
      ${column.title}${order && html`<span aria-hidden="true">${order === "ascending" ? "↑" : "↓"}</span>`}
    </button>
  </th>`;
}

/** Sort items by a column, and return the order with what changes it. Numbers begin with the largest. */
export function useSort(initial, columns) {
  const [sort, setSort] = useState(initial);
  const onSort = (name) =>
    setSort((before) => {
      const natural = columns.find((column) => column.name === name).number ? "descending" : "ascending";
      const other = natural === "ascending" ? "descending" : "ascending";
      return { name, order: before.name === name && before.order === natural ? other : natural };
    });
  const apply = (items) => {
    const value = columns.find((column) => column.name === sort.name).sort;
    const sign = sort.order === "ascending" ? 1 : -1;
    return [...items].sort((one, other) => {
      const [a, b] = [value(one), value(other)];
      if (a === b) return 0;
      if (a == null) return 1;
      if (b == null) return -1;
      return (a < b ? -1 : 1) * sign;
    });
  };
  return { sort, onSort, apply };
}
