//! The page in a browser: Chromium without a window, at the width of a phone and of a screen, in light and in dark.
//!
//! Skipped if there is no Chromium, unless `HUGEFORK_REQUIRE` names it.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};

/// A script that measures the page that it is added to, and sends the result to the page around it.
const MEASURE: &str = r#"<script>
addEventListener('load', () => {
  const wrong = [];
  const over = document.documentElement.scrollWidth - innerWidth;
  if (over > 0) wrong.push(`the page is ${over} wider than its window`);
  const figures = document.querySelectorAll('figure');
  for (const figure of figures) {
    const svg = figure.querySelector('svg'), all = svg.getBoundingClientRect();
    if (all.width < 300 || all.height < 50) wrong.push(`${figure.id} is ${all.width} by ${all.height}`);
    if (!svg.querySelector('rect:not(.hint),polyline,circle')) wrong.push(`${figure.id} shows nothing`);
    const texts = [...svg.querySelectorAll('text')].map(text => [text, text.getBoundingClientRect()]);
    texts.forEach(([text, box], index) => {
      if (box.left < all.left - 1 || box.right > all.right + 1 || box.top < all.top - 1 || box.bottom > all.bottom + 1)
        wrong.push(`${figure.id}: '${text.textContent}' sticks out`);
      if (parseFloat(getComputedStyle(text).fontSize) * all.width / 400 < 9) wrong.push(`${figure.id} is too small to read`);
      if (text.classList.contains('slanted')) return;
      for (const [other, box2] of texts.slice(index + 1)) {
        const across = Math.min(box.right, box2.right) - Math.max(box.left, box2.left);
        const down = Math.min(box.bottom, box2.bottom) - Math.max(box.top, box2.top);
        if (!other.classList.contains('slanted') && across > 1 && down > box.height / 3)
          wrong.push(`${figure.id}: '${text.textContent}' lies on '${other.textContent}'`);
      }
    });
  }
  document.querySelectorAll('details').forEach(details => details.open = true);
  // A chart's own table may scroll where figures have fifteen digits, as those that are made up here.
  for (const table of document.querySelectorAll('.scroll:not(figure:not(.percentiles) *)')) {
    const over = table.scrollWidth - table.clientWidth, of = table.closest('section,figure');
    if (innerWidth >= 1300 && over > 0) wrong.push(`a table of ${of.id} is ${over} wider than its place`);
  }
  for (const charts of document.querySelectorAll('.charts')) {
    const all = charts.getBoundingClientRect(), right = charts.lastElementChild.getBoundingClientRect().right;
    if (all.right - right > all.width / 4) wrong.push(`${charts.parentElement.id}: a part of its last row is empty`);
  }
  parent.postMessage({figures: figures.length, wrong, ground: getComputedStyle(document.body).backgroundColor}, '*');
});
</script>"#;

struct Browser {
    program: PathBuf,
    scratch: PathBuf,
}

/// None if there is none, with a line that says so.
fn browser(test: &str) -> Option<Browser> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let program = std::env::split_paths(&path).map(|directory| directory.join("chromium")).find(|file| file.is_file());
    let Some(program) = program else {
        let required = std::env::var("HUGEFORK_REQUIRE").unwrap_or_default();
        assert!(
            !required.split(',').any(|name| name == "chromium"),
            "HUGEFORK_REQUIRE names chromium, which is missing"
        );
        println!("skipped: chromium is not installed (apt-get install chromium)");
        return None;
    };
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = fs::remove_dir_all(&scratch);
    fs::create_dir_all(&scratch).unwrap();
    Some(Browser { program, scratch })
}

/// Hosts that Chromium itself connects to.
const ITS_OWN: [&str; 4] = [".google.com", ".googleapis.com", ".gvt1.com", ".gstatic.com"];

/// A connection that asks for nothing, and ends the list of requests.
const LAST: &str = "that is all";

impl Browser {
    fn write(&self, name: &str, html: &str) -> String {
        let file = self.scratch.join(name);
        fs::write(&file, html).unwrap();
        format!("file://{}", file.display())
    }

    /// The document that `address` becomes, and the hosts that the browser asked for.
    fn open(&self, address: &str, more: &[&str]) -> (String, Vec<String>) {
        let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
        let listens = proxy.local_addr().unwrap();
        let at = format!("--proxy-server=http://{listens}");
        let asked = listen(proxy);
        let Output { status, stdout, stderr } = Command::new(&self.program)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"])
            .args(["--disable-component-update", "--disable-sync", "--enable-logging=stderr", "--v=0"])
            .args(["--proxy-bypass-list=<-loopback>", "--virtual-time-budget=20000", "--dump-dom", &at])
            .arg(format!("--user-data-dir={}", self.scratch.join("profile").display()))
            .args(more)
            .arg(address)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let log = String::from_utf8_lossy(&stderr);
        assert!(status.success(), "{log}");
        let said: Vec<&str> = log.lines().filter(|line| line.contains(":CONSOLE")).collect();
        assert!(said.is_empty(), "on the console: {said:?}");
        // Connections are taken in their order: none of the browser's comes after ours, since it has ended.
        TcpStream::connect(listens).unwrap().write_all(LAST.as_bytes()).unwrap();
        let asked = asked.iter().take_while(|line| line != LAST);
        // A connection without a request asks for nothing.
        let asked = asked.filter(|line| !line.is_empty());
        let foreign = asked.filter(|line| !ITS_OWN.iter().any(|own| host(line).ends_with(own))).collect();
        (String::from_utf8(stdout).unwrap(), foreign)
    }
}

/// The host of a line such as `GET http://example.com/a.css HTTP/1.1` or `CONNECT example.com:443 HTTP/1.1`.
fn host(line: &str) -> &str {
    let address = line.split_whitespace().nth(1).unwrap_or_default();
    let address = address.split_once("://").map_or(address, |(_, rest)| rest);
    address.split([':', '/']).next().unwrap_or_default()
}

/// First lines of the requests to a proxy that never answers.
fn listen(proxy: TcpListener) -> Receiver<String> {
    let (tell, asked) = channel();
    std::thread::spawn(move || {
        for stream in proxy.incoming().map_while(Result::ok) {
            let mut line = [0; 300];
            let mut stream = stream;
            let read = stream.read(&mut line).unwrap_or(0);
            let text = String::from_utf8_lossy(&line[..read]);
            if tell.send(text.lines().next().unwrap_or_default().to_owned()).is_err() {
                return;
            }
        }
    });
    asked
}

#[test]
fn every_chart_is_there_with_its_figures_and_nothing_is_asked_for() {
    let Some(browser) = browser("figures") else { return };
    let records = common::everything();
    let page = common::page();
    let (document, asked) = browser.open(&browser.write("report.html", page), &[]);
    assert!(asked.is_empty(), "{asked:?}");
    let charts = common::charts(&document);
    assert_eq!(charts.len(), common::charts(page).len());
    let medians: Vec<f64> = records.iter().flat_map(|record| &record.entries).map(|entry| entry.median).collect();
    let mut figures = common::figures(page);
    assert_eq!(common::figures(&document), figures, "the browser reads other figures than were written");
    figures.retain(|(value, _)| medians.contains(value));
    assert!(figures.len() >= medians.len(), "{} of {}", figures.len(), medians.len());
    for chart in charts {
        assert!(chart.contains("<svg class=\"chart\"") && !common::figures(chart).is_empty(), "{chart}");
    }
    // To the browser, names from files are text.
    assert!(!document.contains("<script") && !document.contains("<img"));
}

#[test]
fn a_page_that_asks_for_something_would_be_found_out() {
    let Some(browser) = browser("asking") else { return };
    let (_, asked) =
        browser.open(&browser.write("asking.html", "<link rel=stylesheet href=http://example.com/a.css>"), &[]);
    assert!(asked.iter().any(|line| line.contains("example.com")), "{asked:?}");
}

#[test]
fn nothing_overlaps_or_sticks_out_on_a_phone_and_on_a_screen_in_light_and_dark() {
    let Some(browser) = browser("layout") else { return };
    let page = common::page();
    let charts = common::charts(page).len();
    // Only the copy that is measured runs a script, and so has no policy against it.
    let (before, policy) = page.split_once("<meta http-equiv=\"Content-Security-Policy\"").unwrap();
    let page = format!("{before}{}{MEASURE}", policy.split_once('>').unwrap().1);
    let page = browser.write("measured.html", &page);
    for (width, scheme, ground) in
        [(400, 1, "rgb(255, 255, 255)"), (760, 1, "rgb(255, 255, 255)"), (1400, 0, "rgb(21, 23, 26)")]
    {
        // A window cannot be narrower than some 500 pixels, but a frame can.
        let around = format!(
            "<meta name=color-scheme content='light dark'><iframe src='{page}' style='border:0;width:{width}px;height:2000px'></iframe>\
             <pre></pre><script>addEventListener('message', event => document.querySelector('pre').textContent = \
             JSON.stringify(event.data))</script>"
        );
        let around = browser.write(&format!("around-{width}.html"), &around);
        let scheme = format!("--blink-settings=preferredColorScheme={scheme}");
        let (document, _) = browser.open(&around, &[&scheme, "--window-size=1500,1000"]);
        let told = document
            .split("<pre>")
            .nth(1)
            .unwrap()
            .split("</pre>")
            .next()
            .unwrap()
            .replace("&gt;", ">")
            .replace("&lt;", "<");
        let told: serde_json::Value =
            serde_json::from_str(&told.replace("&amp;", "&")).unwrap_or_else(|_| panic!("{document}"));
        assert_eq!(told["figures"], charts, "at {width}");
        assert_eq!(told["ground"], ground, "at {width}");
        assert_eq!(told["wrong"], serde_json::json!([]), "at {width}");
    }
}
