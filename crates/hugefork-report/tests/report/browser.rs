//! The page in Chromium, as wide as a phone and as a screen, in light and in dark: every picture
//! shows something, no text lies on another or sticks out, and text is large enough.
//!
//! Skipped if there is no Chromium, unless `HUGEFORK_REQUIRE` names it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use hugefork_report::report;

use crate::common::{every_case, hostile};

/// A script that measures the page that it is added to, and sends the result to the page around it.
const MEASURE: &str = r#"<script>
addEventListener('load', () => {
  const wrong = [];
  const over = document.documentElement.scrollWidth - innerWidth;
  if (over > 0) wrong.push(`the page is ${over} wider than its window`);
  const figures = document.querySelectorAll('figure');
  figures.forEach((figure, place) => {
    const svg = figure.querySelector('svg'), all = svg.getBoundingClientRect();
    if (all.width < 300 || all.height < 150) wrong.push(`${place} is ${all.width} by ${all.height}`);
    if (!svg.querySelector('circle')) wrong.push(`${place} shows nothing`);
    const texts = [...svg.querySelectorAll('text')].map(text => [text, text.getBoundingClientRect()]);
    texts.forEach(([text, box], index) => {
      if (box.left < all.left - 1 || box.right > all.right + 1 || box.top < all.top - 1 || box.bottom > all.bottom + 1)
        wrong.push(`${place}: '${text.textContent}' sticks out`);
      if (text.getBBox().height * all.width / svg.viewBox.baseVal.width < 11) wrong.push(`${place} is too small to read`);
      for (const [other, box2] of texts.slice(index + 1)) {
        const across = Math.min(box.right, box2.right) - Math.max(box.left, box2.left);
        const down = Math.min(box.bottom, box2.bottom) - Math.max(box.top, box2.top);
        if (across > 1 && down > box.height / 3) wrong.push(`${place}: '${text.textContent}' lies on '${other.textContent}'`);
      }
    });
  });
  parent.postMessage({figures: figures.length, wrong, ground: getComputedStyle(document.body).backgroundColor}, '*');
});
</script>"#;

/// None without Chromium, with a line that says so.
fn chromium() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let program = std::env::split_paths(&path).map(|directory| directory.join("chromium")).find(|file| file.is_file());
    if program.is_none() {
        let required = std::env::var("HUGEFORK_REQUIRE").unwrap_or_default();
        assert!(
            !required.split(',').any(|name| name == "chromium"),
            "HUGEFORK_REQUIRE names chromium, which is missing"
        );
        println!("skipped: chromium is not installed (apt-get install chromium)");
    }
    program
}

/// The document that the page `around` becomes.
fn open(program: &Path, scratch: &Path, around: &Path, scheme: u32) -> String {
    let output = Command::new(program)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"])
        .args(["--virtual-time-budget=20000", "--dump-dom", "--window-size=1500,1000"])
        .arg(format!("--blink-settings=preferredColorScheme={scheme}"))
        .arg(format!("--user-data-dir={}", scratch.join("profile").display()))
        .arg(format!("file://{}", around.display()))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn nothing_overlaps_or_sticks_out_on_a_phone_and_on_a_screen_in_light_and_dark() {
    let Some(program) = chromium() else { return };
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join("layout");
    let _ = fs::remove_dir_all(&scratch);
    fs::create_dir_all(&scratch).unwrap();
    let page = report(&[every_case(), hostile()]);
    let pictures = page.matches("<figure ").count();
    // Only the copy that is measured runs a script, and so has no policy against it.
    let (before, policy) = page.split_once("<meta http-equiv=\"Content-Security-Policy\"").unwrap();
    let measured = scratch.join("measured.html");
    fs::write(&measured, format!("{before}{}{MEASURE}", policy.split_once('>').unwrap().1)).unwrap();
    for (width, scheme, ground) in [(400, 1, "rgb(255, 255, 255)"), (1400, 0, "rgb(13, 17, 23)")] {
        // A window cannot be narrower than some 500 pixels, but a frame can.
        let around = scratch.join(format!("around-{width}.html"));
        let frame = format!(
            "<meta name=color-scheme content='light dark'><iframe src='file://{}' style='border:0;width:{width}px;\
             height:2000px'></iframe><pre></pre><script>addEventListener('message', event => \
             document.querySelector('pre').textContent = JSON.stringify(event.data))</script>",
            measured.display()
        );
        fs::write(&around, frame).unwrap();
        let document = open(&program, &scratch, &around, scheme);
        let told = document.split_once("<pre>").unwrap().1.split_once("</pre>").unwrap().0;
        let told = told.replace("&gt;", ">").replace("&lt;", "<").replace("&amp;", "&");
        let told: serde_json::Value = serde_json::from_str(&told).unwrap_or_else(|_| panic!("{document}"));
        assert_eq!(told["figures"], pictures, "at {width}");
        assert_eq!(told["ground"], ground, "at {width}");
        assert_eq!(told["wrong"], serde_json::json!([]), "at {width}");
    }
}
