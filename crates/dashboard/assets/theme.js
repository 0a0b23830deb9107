// Applies the chosen theme before the page is drawn; without a choice, the system's theme applies.
(() => {
  const read = () => { try { return localStorage.getItem("ronde-theme"); } catch { return null; } };
  const chosen = read();
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
  window.switchTheme = () => {
    const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    const now = document.documentElement.dataset.theme || system;
    const next = now === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    try { localStorage.setItem("ronde-theme", next); } catch { /* The choice lasts as long as the page. */ }
  };
})();
