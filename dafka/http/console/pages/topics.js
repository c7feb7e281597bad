// All topics in one table: thousands of them are read page by page, and only rows that can be seen are drawn.
import { html, useEffect, useMemo, useRef, useState } from "../vendor/htm-preact-3.1.1.js";
import { get, may, segment } from "../api.js";
import { brief, bytes, count, plural } from "../format.js";
import { steadyNow, useView, useVisible } from "../live.js";
import { go, href, parseHash, setQuery } from "../router.js";
import { Table, useSort } from "../table.js";
import { CreateTopic } from "../topic_dialogs.js";
import { Ago, Empty, Head, Search, Waiting } from "../widgets.js";

const PAGE = 1000;
const REPEAT_MS = 10_000;

/** Return the topics behind the first page, which are read again every few seconds while the page can be seen. */
function useFurtherTopics(after) {
  const [further, setFurther] = useState([]);
  const visible = useVisible();
  useEffect(() => {
    if (!after || !visible) return undefined;
    const ending = new AbortController();
    let timer = 0;
    const read = async () => {
      const found = [];
      const at = steadyNow();
      let next = after;
      try {
        while (next) {
          const page = await get(`topics?sizes=true&limit=${PAGE}&after=${segment(next)}`, ending.signal);
          found.push(...page.topics);
          next = page.next;
          setFurther((before) => (before.length < found.length ? [...found] : before));
        }
        setFurther(found.map((each) => ({ ...each, at })));
      } catch {
        // The connection is lost, which the frame shows, or the page was left.
      }
      if (!ending.signal.aborted) timer = setTimeout(read, REPEAT_MS);
    };
    read();
    return () => {
      ending.abort();
      clearTimeout(timer);
    };
  }, [after, visible]);
  return after ? further : [];
}

/** Return topics with their rates: how many records each gained between two readings. */
function useRates(topics, at) {
  const seen = useRef(new Map());
  return useMemo(() => {
    const next = new Map();
    const rated = topics.map((topic) => {
      const time = topic.at ?? at;
      const before = seen.current.get(topic.name);
      let rate = before?.rate ?? null;
      if (topic.end_offset === null) {
        if (before) next.set(topic.name, before);
        return { ...topic, rate };
      }
      if (before && time - before.time > 400) rate = (Math.max(0, topic.end_offset - before.end) * 1000) / (time - before.time);
      next.set(topic.name, before && time - before.time <= 400 ? before : { time, end: topic.end_offset, rate });
      return { ...topic, rate };
    });
    seen.current = next;
    return rated;
  }, [topics, at]);
}

const COLUMNS = [
  {
    name: "name",
    title: "Topic",
    sort: (topic) => topic.name,
    render: (topic) => html`<a class="mono" title=${topic.name} href=${href(["topics", topic.name])}>${topic.name}</a>`,
  },
  { name: "logs", title: "Logs", number: true, wide: true, width: "80px", sort: (topic) => topic.log_count, render: (topic) => count(topic.log_count) },
  { name: "records", title: "Records", number: true, width: "104px", sort: (topic) => topic.record_count, render: (topic) => count(topic.record_count) },
  { name: "rate", title: "In, per s", number: true, width: "84px", sort: (topic) => topic.rate, render: (topic) => (topic.rate == null ? "–" : brief(topic.rate)) },
  { name: "bytes", title: "Size", number: true, wide: true, width: "112px", sort: (topic) => topic.bytes, render: (topic) => bytes(topic.bytes) },
  {
    name: "last",
    title: "Newest record",
    number: true,
    wide: true,
    width: "168px",
    sort: (topic) => topic.last_stored_at,
    render: (topic) => html`<${Ago} ms=${topic.last_stored_at} />`,
  },
];

export function Topics({ session }) {
  const view = useView(`topics?sizes=true&limit=${PAGE}`);
  const further = useFurtherTopics(view.data?.next);
  const [filter, setFilter] = useState(parseHash().query.get("filter") ?? "");
  const [creating, setCreating] = useState(false);
  const { sort, onSort, apply } = useSort({ name: "name", order: "ascending" }, COLUMNS);
  const all = useRates(useMemo(() => [...(view.data?.topics ?? []), ...further], [view.data, further]), view.at);
  const shown = useMemo(() => {
    const wanted = filter.toLowerCase();
    return apply(wanted ? all.filter((topic) => topic.name.toLowerCase().includes(wanted)) : all);
  }, [all, filter, sort]);
  const input = (text) => {
    setFilter(text);
    setQuery({ filter: text });
  };
  const create = session.permissions.admin.length > 0;
  const button = create && html`<button class="primary" onClick=${() => setCreating(true)}>Create a topic</button>`;
  if (!view.data) return html`<${Head} title="Topics">${button}<//><${Waiting} view=${view} what="topics" />`;
  const sub = filter ? `${count(shown.length)} of ${plural(all.length, "topic")}` : plural(all.length, "topic");
  const empty = filter
    ? html`<${Empty} title="No topic matches">No topic has “${filter}” in its name.<//>`
    : html`<${Empty} title="No topics yet">A topic comes into being when somebody creates it, or publishes a record to it.<//>`;
  return html`<${Head} title="Topics" sub=${sub}>${button}<//>
    <div class="tools"><${Search} label="Filter topics by name" hint="Filter by name" value=${filter} onInput=${input} /></div>
    <div class="panel">
      <${Table} tall label="Topics" columns=${COLUMNS} items=${shown} keyOf=${(topic) => topic.name} sort=${sort} onSort=${onSort} empty=${empty} />
    </div>
    ${creating && html`<${CreateTopic} may=${(name) => may(session, "admin", name)} onClose=${(name) => {
      setCreating(false);
      if (name) go(["topics", name]);
    }} />`}`;
}
