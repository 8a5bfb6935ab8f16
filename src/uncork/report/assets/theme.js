// Light or dark: what the system says, until someone chooses.

const THEMES = ["auto", "light", "dark"];

function storedTheme() {
  try {
    return localStorage.getItem("uncork-theme");
  } catch {
    return null; // a page opened from a file may have no storage
  }
}

/** Make a button that goes round auto, light and dark; `changed` is called after each change. */
export function themeButton(button, changed = () => {}) {
  let theme = THEMES.includes(storedTheme()) ? storedTheme() : "auto";
  const apply = () => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = "Theme: " + theme;
  };
  button.addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    try {
      localStorage.setItem("uncork-theme", theme);
    } catch {
      // not kept, then
    }
    apply();
    changed();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  apply();
}
