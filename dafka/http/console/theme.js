// Runs before the page is painted, so that it never flashes in the wrong colours.
(() => {
  let theme = null;
  try {
    theme = localStorage.getItem("dafka.theme");
  } catch {
    // Storage can be forbidden; the system's theme is used then.
  }
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
})();
