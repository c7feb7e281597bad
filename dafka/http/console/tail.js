// The live tail of a topic: records as they arrive, in batches that a page can draw.
import { useEffect, useRef, useState } from "./vendor/htm-preact-3.1.1.js";
import { liveClient } from "./live.js";

const CREDIT = 500;
const DRAW_MS = 200;
const BEHIND_MAX = 5000;
const BACK = 100;

/**
 * Follow logs from offsets on, and give the records to `onRecords` a few times a second.
 * A paused tail grants no credit, so the broker sends nothing. A tail that is far behind goes on near the end;
 * `skipped` counts what it left out.
 */
export function useTail({ topic, starts, ends, enabled, paused, onRecords }) {
  const [state, setState] = useState({ skipped: 0, error: "" });
  const held = useRef({ positions: {}, pausedNow: paused, subscription: null, owed: 0 });
  const take = useRef(onRecords);
  take.current = onRecords;
  held.current.pausedNow = paused;
  held.current.ends = ends;

  useEffect(() => {
    if (!enabled) return undefined;
    const own = held.current;
    own.positions = { ...starts };
    own.owed = 0;
    let waiting = [];
    let timer = 0;
    const flush = () => {
      timer = 0;
      const records = waiting;
      waiting = [];
      take.current(records);
      if (own.pausedNow) own.owed += records.length;
      else own.subscription?.addCredit(records.length);
    };
    const subscribe = () => {
      own.subscription = liveClient().subscribe(topic, {
        logs: Object.keys(own.positions).map(Number),
        from: { offsets: { ...own.positions } },
        credit: CREDIT,
        onRecords: (log, records, nextOffset) => {
          own.positions[log] = nextOffset;
          for (const record of records) waiting.push({ ...record, log });
          timer ||= setTimeout(flush, DRAW_MS);
        },
        onError: (error) => setState((before) => ({ ...before, error: error.message })),
      });
    };
    const keepUp = setInterval(() => {
      if (own.pausedNow) return;
      let skipped = 0;
      for (const [log, end] of Object.entries(own.ends)) {
        const behind = end - own.positions[log];
        if (behind <= BEHIND_MAX) continue;
        own.positions[log] = end - BACK;
        skipped += behind - BACK;
      }
      if (!skipped) return;
      own.subscription.close();
      subscribe();
      setState((before) => ({ ...before, skipped: before.skipped + skipped }));
    }, 1000);
    setState({ skipped: 0, error: "" });
    subscribe();
    return () => {
      clearInterval(keepUp);
      clearTimeout(timer);
      own.subscription.close();
      own.subscription = null;
    };
  }, [topic, enabled, JSON.stringify(starts)]);

  useEffect(() => {
    const own = held.current;
    if (paused || !own.owed) return;
    own.subscription?.addCredit(own.owed);
    own.owed = 0;
  }, [paused]);
  return state;
}
