// What the theme leaves out for those who hear a page or have no mouse.
document$.subscribe(() => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  for (const code of document.querySelectorAll("pre > code"))
    if (code.scrollWidth > code.clientWidth) code.tabIndex = 0;
});
