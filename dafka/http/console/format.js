// Numbers, sizes, durations and times as people read them.

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const UNITS = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** A whole number with separators. Unknown numbers are a dash. */
export function count(value) {
  return value == null ? "–" : whole.format(value);
}

/** A number in at most three digits, such as 12.3K. */
export function brief(value) {
  if (value == null) return "–";
  return value < 1000 ? whole.format(value < 10 ? Math.round(value * 10) / 10 : Math.round(value)) : short.format(value);
}

/** A size in bytes, with a unit. */
export function bytes(value) {
  if (value == null) return "–";
  let size = value;
  let unit = 0;
  while (size >= 1024 && unit < UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || size >= 100 ? 0 : size >= 10 ? 1 : 2;
  return `${size.toFixed(digits)} ${unit === 0 && size === 1 ? "byte" : UNITS[unit]}`;
}

/** A duration in its two largest units, such as 3 h 12 min. */
export function duration(ms) {
  if (ms == null) return "–";
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 1) return "less than 1 s";
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return seconds % 60 && minutes < 10 ? `${minutes} min ${seconds % 60} s` : `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  const days = Math.floor(hours / 24);
  return hours % 24 && days < 10 ? `${days} d ${hours % 24} h` : `${days} d`;
}

/** How long ago a time was. */
export function age(ms, now = Date.now()) {
  if (ms == null) return "–";
  return now - ms < 2000 ? "just now" : `${duration(now - ms)} ago`;
}

const pad = (value, digits = 2) => String(value).padStart(digits, "0");

/** A time of this computer's time zone, to the millisecond. */
export function time(ms) {
  if (ms == null || ms < 0) return "–";
  const date = new Date(ms);
  if (Number.isNaN(date.getTime())) return "–";
  const day = `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  const clock = `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
  return `${day} ${clock}.${pad(date.getMilliseconds(), 3)}`;
}

/** A time in a list: the clock for times of today, otherwise with the date. */
export function shortTime(ms) {
  const found = time(ms);
  return found.slice(0, 10) === time(Date.now()).slice(0, 10) ? found.slice(11) : found.slice(0, 19);
}

/** The value of a `datetime-local` field for a time. */
export function localInput(ms) {
  return time(ms).replace(" ", "T").slice(0, 19);
}

/** "1 topic", "2 topics". */
export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}
