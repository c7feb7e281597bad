// The address of a page is behind the `#`, so that the broker serves one document.
import { useEffect, useState } from "./vendor/htm-preact-3.1.1.js";

/** Return the parts of the current address: the segments of its path, decoded, and its query. */
export function parseHash(hash = location.hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const segments = path.split("/").filter(Boolean).map((each) => {
    try {
      return decodeURIComponent(each);
    } catch {
      return each;
    }
  });
  return { segments, query: new URLSearchParams(query) };
}

/** Return the address of a page, from unencoded segments. */
export function href(segments, query = {}) {
  const found = new URLSearchParams(Object.entries(query).filter(([, value]) => value != null && value !== ""));
  const text = found.toString();
  return `#/${segments.map((each) => encodeURIComponent(each)).join("/")}${text ? `?${text}` : ""}`;
}

/** Open another page. */
export function go(segments, query) {
  location.hash = href(segments, query).slice(1);
}

/** Open the list of topics or groups, if the page of this one is still open. */
export function leave(list, name) {
  const [first, second] = parseHash().segments;
  if (first === list && second === name) go([list]);
}

/** Change the query of the current page without a further entry in the history. */
export function setQuery(changes) {
  const { segments, query } = parseHash();
  const next = { ...Object.fromEntries(query), ...changes };
  history.replaceState(null, "", href(segments, next));
}

/**
 * Return the address that was opened last, and render again when one is. `setQuery` opens none. `opened` counts them:
 * the same address may be opened again.
 */
export function useRoute() {
  const [route, setRoute] = useState(() => ({ ...parseHash(), opened: 0 }));
  useEffect(() => {
    const changed = () => {
      document.documentElement.dataset.navigated = "yes";
      window.scrollTo(0, 0);
      setRoute((before) => ({ ...parseHash(), opened: before.opened + 1 }));
    };
    window.addEventListener("hashchange", changed);
    return () => window.removeEventListener("hashchange", changed);
  }, []);
  return route;
}
