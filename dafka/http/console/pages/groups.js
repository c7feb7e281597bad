// The groups of consumers.
import { html, useMemo, useState } from "../vendor/htm-preact-3.1.1.js";
import { count, plural } from "../format.js";
import { useView } from "../live.js";
import { href, parseHash, setQuery } from "../router.js";
import { Table, useSort } from "../table.js";
import { Empty, Head, Search, Waiting } from "../widgets.js";

const STATES = { Stable: "good", Empty: "" };

/** A group's state as a label. */
export function GroupState({ state }) {
  const kind = STATES[state] ?? "warn";
  return html`<span class=${`tag ${kind}`}>${state.replace(/(?<=[a-z])(?=[A-Z])/g, " ").toLowerCase()}</span>`;
}

const COLUMNS = [
  { name: "group", title: "Group", sort: (each) => each.group, render: (each) => html`<a class="mono" title=${each.group} href=${href(["groups", each.group])}>${each.group}</a>` },
  { name: "state", title: "State", width: "150px", sort: (each) => each.state, render: (each) => html`<${GroupState} state=${each.state} />` },
  { name: "members", title: "Members", number: true, width: "100px", sort: (each) => each.member_count, render: (each) => count(each.member_count) },
  { name: "type", title: "Type", wide: true, width: "130px", sort: (each) => each.type, render: (each) => each.type },
];

export function Groups() {
  const view = useView("groups?limit=1000");
  const [filter, setFilter] = useState(parseHash().query.get("filter") ?? "");
  const { sort, onSort, apply } = useSort({ name: "group", order: "ascending" }, COLUMNS);
  const all = view.data?.groups ?? [];
  const shown = useMemo(() => apply(all.filter((each) => each.group.toLowerCase().includes(filter.toLowerCase()))), [view.data, filter, sort]);
  if (!view.data) return html`<${Head} title="Groups" /><${Waiting} view=${view} what="groups" />`;
  const sub = filter ? `${count(shown.length)} of ${plural(all.length, "group")}` : plural(all.length, "group");
  const empty = filter
    ? html`<${Empty} title="No group matches">No group has “${filter}” in its name.<//>`
    : html`<${Empty} title="No groups yet">Consumers that share the work on topics form a group, which remembers how far they have read.<//>`;
  const input = (text) => {
    setFilter(text);
    setQuery({ filter: text });
  };
  return html`<${Head} title="Groups" sub=${sub} />
    <div class="tools"><${Search} label="Filter groups by name" hint="Filter by name" value=${filter} onInput=${input} /></div>
    <div class="panel">
      <${Table} tall label="Groups" columns=${COLUMNS} items=${shown} keyOf=${(each) => each.group} sort=${sort} onSort=${onSort} empty=${empty} />
    </div>`;
}
