//! The page of `wheellock serve` in a real Chromium, by keyboard.
//!
//! Without Chromium these tests say so and do nothing, unless `WHEELLOCK_CHROMIUM=required`.

use std::env;
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use rustix::process::getuid;
use serde_json::{Value, json};
use wheellock_fixture::{Server, TestProcess, wait_until};

use crate::http::send;
use crate::serve::{JAVA, Serving, TokenFile};
use crate::support::{PATIENCE, holding, not_run, spawn, wait_until_one_waits};

const ENTER: &str = "\u{e007}";
const ESCAPE: &str = "\u{e00c}";
const TAB: &str = "\u{e004}";
const DOWN: &str = "\u{e015}";
const UP: &str = "\u{e013}";

/// A Chromium without a window, which a chromedriver drives by the protocol `WebDriver`.
struct Browser {
    driver: TestProcess,
    address: SocketAddr,
    session: String,
}

impl Browser {
    /// `None` if there is no Chromium here.
    fn start() -> Option<Self> {
        for program in ["chromedriver", "chromium"] {
            let mut version = Command::new(program);
            version.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
            if !version.status().is_ok_and(|status| status.success()) {
                let required = env::var("WHEELLOCK_CHROMIUM").is_ok_and(|word| word == "required");
                assert!(!required, "there is no {program}, and WHEELLOCK_CHROMIUM is required");
                not_run(&format!(
                    "the tests of the page: there is no {program} (apt-get install chromium chromium-driver)"
                ));
                return None;
            }
        }
        let mut driver = TestProcess::spawn(Command::new("chromedriver").arg("--port=0"));
        let started = "ChromeDriver was started successfully on port ";
        let line = driver.wait_for_line(started, PATIENCE);
        let port = line.trim_start_matches(started).trim_end_matches('.').parse().unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut arguments = vec![
            "--headless=new",
            "--window-size=1200,900",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--no-first-run",
        ];
        if getuid().is_root() {
            // Chromium refuses its sandbox to root.
            arguments.push("--no-sandbox");
        }
        let mut browser = Self { driver, address, session: String::new() };
        let created = browser.post(
            "",
            &json!({"capabilities": {"alwaysMatch": {
                "browserName": "chrome",
                "goog:chromeOptions": {"args": arguments},
                "goog:loggingPrefs": {"browser": "ALL"},
                "unhandledPromptBehavior": "ignore",
            }}}),
        );
        browser.session = format!("/{}", created["sessionId"].as_str().unwrap());
        Some(browser)
    }

    fn post(&self, command: &str, body: &Value) -> Value {
        self.call("POST", command, &body.to_string())
    }

    fn call(&self, method: &str, command: &str, body: &str) -> Value {
        let (status, value) = self.try_call(method, command, body);
        assert_eq!(status, 200, "{method} {command}: {value}; {}", self.driver.output());
        value
    }

    fn try_call(&self, method: &str, command: &str, body: &str) -> (u16, Value) {
        let path = format!("/session{}{command}", self.session);
        let head = [format!("Host: {}", self.address), "Content-Type: application/json".to_owned()];
        let head: Vec<_> = head.iter().map(String::as_str).collect();
        let answer = send(self.address, method, &path, &head, body).unwrap();
        let value: Value = serde_json::from_str(&answer.body).unwrap_or_default();
        (answer.status, value["value"].clone())
    }

    fn open(&self, url: &str) {
        self.post("/url", &json!({"url": url}));
    }

    /// What the expression is in the page.
    fn value(&self, expression: &str) -> Value {
        let script = format!("return ({expression});");
        self.post("/execute/sync", &json!({"script": script, "args": []}))
    }

    fn press(&self, keys: &[&str]) {
        let mut actions = Vec::new();
        for key in keys {
            actions.push(json!({"type": "keyDown", "value": key}));
            actions.push(json!({"type": "keyUp", "value": key}));
        }
        let keyboard = json!({"type": "key", "id": "keyboard", "actions": actions});
        self.post("/actions", &json!({"actions": [keyboard]}));
    }

    fn wait_for(&self, expression: &str, expected: &Value) {
        let what = format!("{expression} is {expected}");
        wait_until(&what, PATIENCE, || self.value(expression) == *expected);
    }

    /// The names in the rows.
    fn names(&self) -> Vec<String> {
        let names = self
            .value("[...document.querySelectorAll('#rows summary')].map((one) => one.textContent)");
        serde_json::from_value(names).unwrap()
    }

    fn wait_for_names(&self, names: &[&str]) {
        let what = format!("the rows are {names:?}");
        wait_until(&what, PATIENCE, || self.names() == names);
    }

    /// The page has asked for nothing outside, and Chromium has refused nothing.
    fn assert_harmless(&self, serving: &Serving) {
        // A URL may have the token in front of the host.
        let resources =
            "performance.getEntriesByType('resource').map((one) => new URL(one.name).origin)";
        let resources: Vec<String> = serde_json::from_value(self.value(resources)).unwrap();
        let origin = format!("http://{}", serving.address);
        assert!(resources.len() >= 3, "{resources:?}");
        assert!(resources.iter().all(|found| *found == origin), "{resources:?}");
        let log = self.post("/se/log", &json!({"type": "browser"}));
        assert_eq!(log, json!([]), "Chromium complains");
        let (status, alert) = self.try_call("GET", "/alert/text", "");
        assert_eq!((status, &alert["error"]), (404, &json!("no such alert")));
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Ends Chromium, which is not the fixture's child.
        let path = format!("/session{}", self.session);
        send(self.address, "DELETE", &path, &["Host: localhost"], "").ok();
    }
}

const FOCUSED: &str = "document.activeElement.id || document.activeElement.dataset.key || document.activeElement.textContent";

#[test]
fn the_page_is_used_by_keyboard_and_shows_what_is_new() {
    let Some(browser) = Browser::start() else { return };
    let server = Server::start();
    for name in ["java:1", "java:2", "orders:1"] {
        server.command(&["HSET", name, JAVA, "1"]);
    }
    server.command(&["PEXPIRE", "orders:1", "600000"]);
    let (_holder, _) = holding(&server, &["--fair"]);
    let _waiter = spawn(&server, &["--fair"], &["true"]);
    wait_until_one_waits(&server);
    let serving = Serving::start(&server, &["--refresh", "0.2"]);
    browser.open(&format!("http://{}/", serving.address));
    browser.wait_for_names(&["java:1", "java:2", "nightly", "orders:1"]);

    // 1. Search, go to a row, open it, and clear the search.
    browser.press(&["/"]);
    assert_eq!(browser.value(FOCUSED), "search");
    browser.press(&["J", "a", "v", "a"]);
    browser.wait_for_names(&["java:1", "java:2"]);
    browser.press(&[DOWN, DOWN]);
    assert_eq!(browser.value(FOCUSED), "java:2");
    browser.press(&[UP, ENTER]);
    browser.wait_for(
        "document.querySelector('#rows details[open] dl')?.textContent.includes('without an end')",
        &json!(true),
    );
    // 2. The details stay open and the focus where it is while the page is refreshed.
    server.command(&["HSET", "a-java", JAVA, "1"]);
    browser.wait_for_names(&["a-java", "java:1", "java:2"]);
    let open = "[...document.querySelectorAll('#rows details[open] summary')].map((one) => one.textContent)";
    assert_eq!(browser.value(open), json!(["java:1"]));
    assert_eq!(browser.value(FOCUSED), "java:1");
    server.command(&["DEL", "a-java"]);
    browser.press(&[ESCAPE]);
    assert_eq!(browser.value(FOCUSED), "search");
    browser.wait_for_names(&["java:1", "java:2", "nightly", "orders:1"]);

    // 3. Sort, by the buttons in the head of the table.
    let mut tabs = 0;
    while browser.value(FOCUSED) != "name" {
        browser.press(&[TAB]);
        tabs += 1;
        assert!(tabs < 20, "{}", browser.value(FOCUSED));
    }
    browser.press(&[ENTER]);
    browser.wait_for_names(&["orders:1", "nightly", "java:2", "java:1"]);
    let sorted = "document.querySelector('th[aria-sort]').getAttribute('aria-sort')";
    assert_eq!(browser.value(sorted), "descending");
    browser.press(&[TAB, TAB, TAB, TAB, TAB, ENTER]);
    wait_until("the lock with a waiter is first", PATIENCE, || browser.names()[0] == "nightly");
    assert_eq!(browser.value(FOCUSED), "waiters");

    // 4. The picture: one lock, and an arrow of each kind.
    browser.wait_for(
        "['g.lock', 'path.holds', 'path.waits', 'path.cycle'].map((part) => document.querySelectorAll('#graph ' + part).length)",
        &json!([1, 1, 1, 0]),
    );
    let text = "document.querySelector('#graph g.lock text').textContent";
    assert_eq!(browser.value(text), "nightly");
    browser.assert_harmless(&serving);
    // Edges of a cycle are marked, wherever they come from.
    let cycle = "draw({nodes: ['client', 'lock'].map((kind) => ({kind, text: kind})), edges: [
        {from: 0, to: 1, kind: 'waits', cycle: true}, {from: 1, to: 0, kind: 'holds', cycle: true}]})";
    let marked = "document.querySelectorAll('#graph path.cycle').length";
    assert_eq!(browser.value(&format!("({cycle}, {marked})")), json!(2));

    // 5. Without the server the rows stay, and the page says of when they are.
    server.kill();
    browser.wait_for("document.getElementById('error').hidden", &json!(false));
    let error = browser.value("document.getElementById('error').textContent");
    assert!(error.as_str().unwrap().contains("What is shown is of "), "{error}");
    assert_eq!(browser.names().len(), 4);
    server.start_again();
    browser.wait_for("document.getElementById('error').hidden", &json!(true));
    browser.wait_for_names(&[]);
}

#[test]
fn hostile_names_do_no_harm_in_the_page() {
    let Some(browser) = Browser::start() else { return };
    let server = Server::start();
    let long = "w".repeat(64 * 1024);
    let names = [
        "<img src=x onerror=\"document.title='owned'\">",
        "<script>document.title='owned'</script>",
        "</summary></table><iframe src='javascript:alert(1)'></iframe>",
        "javascript:alert(1)",
        "__proto__",
        "constructor",
        "\u{1b}]0;owned\u{7}",
        "invoice\u{202e}fdp.exe",
        "שלום:1",
        &format!("z{}", "\u{301}".repeat(2000)),
        &long,
    ];
    for name in names {
        server.command(&["HSET", name, JAVA, "1"]);
    }
    // Somebody waits for each, so that all are in the picture too.
    let channels: Vec<_> = names.map(|name| format!("redisson_lock__channel:{{{name}}}")).into();
    let mut subscriber = server.connection();
    for channel in &channels {
        subscriber.command(&["SUBSCRIBE", channel]);
    }
    let serving = Serving::start(&server, &["--refresh", "0.2"]);
    browser.open(&format!("http://{}/", serving.address));
    let count = json!(names.len());
    browser.wait_for("document.querySelectorAll('#rows tr').length", &count);
    browser.wait_for("document.querySelectorAll('#graph g.lock').length", &count);
    // All details, with the whole names.
    browser
        .value("document.querySelectorAll('#rows details').forEach((one) => { one.open = true; })");
    browser.wait_for("document.querySelectorAll('#rows dl').length", &count);

    let made = "['img', 'iframe', 'script', 'table', '[onerror]'].map((tag) => document.querySelectorAll(tag).length)";
    assert_eq!(browser.value(made), json!([0, 0, 1, 1, 0]));
    assert_eq!(browser.value("document.title"), "Locks – wheellock");
    let shown = browser.names();
    assert!(shown.contains(&names[0].to_owned()), "{shown:?}");
    assert!(shown.contains(&"invoice\\u{202e}fdp.exe".to_owned()), "{shown:?}");
    assert!(shown.contains(&"\\u{1b}]0;owned\\u{7}".to_owned()), "{shown:?}");
    assert!(shown.contains(&format!("{}…", "w".repeat(80))), "{shown:?}");
    let whole = "Math.max(...[...document.querySelectorAll('.whole')].map((one) => one.textContent.length))";
    assert_eq!(browser.value(whole), json!(long.len()));
    let is_raw = "/[\\u001b\\u0007\\u202e]/.test(document.body.textContent)";
    assert_eq!(browser.value(is_raw), json!(false));
    // No name makes the page wider or the rows much higher than others.
    let overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth";
    assert_eq!(browser.value(overflow), json!(0));
    browser.assert_harmless(&serving);
}

#[test]
fn page_works_with_token_dark_mode_and_small_screen() {
    let Some(browser) = Browser::start() else { return };
    let server = Server::start();
    server.command(&["HSET", "orders:1", JAVA, "1"]);
    let file = TokenFile::new("browser", "a-token-of-some-length");
    let serving = Serving::start(&server, &["--token-file", file.path()]);
    // As a user who types the token into the browser's question.
    browser.open(&format!("http://me:a-token-of-some-length@{}/", serving.address));
    browser.wait_for_names(&["orders:1"]);
    let background = "getComputedStyle(document.body).backgroundColor";
    let light = browser.value(background);
    let dark = json!({"cmd": "Emulation.setEmulatedMedia", "params": {
        "features": [{"name": "prefers-color-scheme", "value": "dark"}]}});
    browser.post("/goog/cdp/execute", &dark);
    assert_ne!(browser.value(background), light);
    browser.post("/window/rect", &json!({"width": 500, "height": 700}));
    let overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth";
    browser.wait_for(overflow, &json!(0));
    browser.assert_harmless(&serving);
}
