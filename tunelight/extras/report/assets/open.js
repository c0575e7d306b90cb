"use strict";
// A saved page's first script: it unpacks what is compressed, and runs the others.
(async () => {
  try {
    for (const part of document.querySelectorAll('script[type="application/gzip"]')) {
      const packed = Uint8Array.from(atob(part.textContent), (char) => char.charCodeAt(0));
      const opened = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
      part.textContent = await new Response(opened).text();
    }
  } catch (error) {
    const trouble = document.getElementById("trouble");
    trouble.textContent = "This report needs a browser of 2023 or later (" + error + ").";
    trouble.hidden = false;
    return;
  }
  for (const part of document.querySelectorAll('script[id^="run-"]')) {
    const script = document.createElement("script");
    script.textContent = part.textContent;
    document.body.append(script);
  }
})();
