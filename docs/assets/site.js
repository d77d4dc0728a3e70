// What the theme leaves out for those who hear a page or have no mouse.
const reach = () => {
  for (const wide of document.querySelectorAll("pre > code, .md-typeset__scrollwrap"))
    if (wide.scrollWidth > wide.clientWidth) wide.tabIndex = 0;
};
document$.subscribe(() => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  reach();
  setTimeout(reach, 300); // the theme wraps tables later
});
window.addEventListener("resize", reach);
