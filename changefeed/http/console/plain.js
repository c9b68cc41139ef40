// Renews the list of feeds of an address without the API in its place.

setInterval(async () => {
  const answer = await fetch(location.href);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (answer.ok) document.getElementById("feeds").replaceWith(page.getElementById("feeds"));
}, 5000);
