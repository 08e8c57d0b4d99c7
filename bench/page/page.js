"use strict";
(() => {
  const tip = document.getElementById("tip"), by = document.getElementById("by");
  document.addEventListener("pointermove", (e) => {
    const text = e.target.dataset && e.target.dataset.tip;
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    tip.style.left = Math.min(e.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
    tip.style.top = Math.min(e.clientY + 14, innerHeight - tip.offsetHeight - 8) + "px";
  });
  document.addEventListener("pointerleave", () => { tip.hidden = true; });
  // A click on a name takes its series away in all charts, and brings it back.
  document.addEventListener("click", (e) => {
    const button = e.target.closest(".legend button");
    if (!button) return;
    const shown = button.getAttribute("aria-pressed") !== "true";
    for (const b of document.querySelectorAll(".legend button")) if (b.textContent === button.textContent) b.setAttribute("aria-pressed", String(shown));
    for (const mark of document.querySelectorAll("[data-series]")) if (mark.dataset.series === button.textContent) mark.style.display = shown ? "" : "none";
  });
  const divide = () => { for (const d of document.querySelectorAll("[data-by]")) d.hidden = d.dataset.by !== by.value; };
  by.addEventListener("change", divide);
  divide();
})();
