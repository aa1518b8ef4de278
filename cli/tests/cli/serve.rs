//! `wheellock serve`: what is served, to whom, and what the server is asked for.

use std::env;
use std::fs;
use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;

use rustix::process::Signal;
use serde_json::Value;
use wheellock_fixture::{Server, TestProcess, wait_until};

use crate::http::{Answer, get, read, send as request};
use crate::support::{
    FAILED, PATIENCE, ended, holding, id, not_run, send, spawn, wait_until_one_waits, wheellock,
};

/// A thread of Redisson, as its owner shows.
pub(crate) const JAVA: &str = "7f9a3b7e-0f0e-4c3f-9a51-2f4a5d8f0c11:42";

const TOKEN: &str = "a-token-of-some-length";

/// A `wheellock serve` on a port of its own.
pub(crate) struct Serving {
    pub(crate) process: TestProcess,
    pub(crate) address: SocketAddr,
}

impl Serving {
    pub(crate) fn start(server: &Server, options: &[&str]) -> Self {
        let words = [&["serve", "--listen", "127.0.0.1:0"], options].concat();
        Self::of(wheellock(&words).env("REDIS_URL", server.url()))
    }

    pub(crate) fn of(command: &mut Command) -> Self {
        let mut process = TestProcess::spawn(command);
        let line = process.wait_for_line("listening on http://", PATIENCE);
        let address = line.trim_start_matches("listening on http://").trim_end_matches('/');
        let address = address.parse().unwrap();
        Self { process, address }
    }

    fn get(&self, path: &str) -> Answer {
        get(self.address, path, &[])
    }

    /// The object of `/api`.
    fn api(&self) -> Value {
        serde_json::from_str(&ready(self.address, "/api").body).unwrap()
    }

    /// The text of `/metrics`, which `promtool` has found good, if there is one.
    fn metrics(&self) -> String {
        let answer = ready(self.address, "/metrics");
        let program = env::var_os("PROMTOOL").unwrap_or_else(|| "promtool".into());
        let mut check = Command::new(&program);
        check.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        match check.stderr(Stdio::piped()).spawn() {
            Ok(mut check) => {
                check.stdin.take().unwrap().write_all(answer.body.as_bytes()).unwrap();
                let checked = check.wait_with_output().unwrap();
                assert!(checked.status.success(), "{checked:?} of\n{}", answer.body);
            }
            Err(error) => not_run(&format!("promtool check metrics: {error}")),
        }
        answer.body
    }
}

/// A file that is gone with this value.
pub(crate) struct TokenFile(PathBuf);

impl TokenFile {
    pub(crate) fn new(name: &str, text: &str) -> Self {
        let file = format!("wheellock-serve-{}-{name}", std::process::id());
        let path = env::temp_dir().join(file);
        fs::write(&path, text).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for TokenFile {
    fn drop(&mut self) {
        fs::remove_file(&self.0).ok();
    }
}

/// The answer, once the first scan is over, which takes long on a busy machine.
fn ready(address: SocketAddr, path: &str) -> Answer {
    let mut last = None;
    wait_until("the first scan is over", PATIENCE, || {
        let answer = get(address, path, &[]);
        let is_over = answer.status != 503 || !answer.body.contains("not over yet");
        last = Some(answer);
        is_over
    });
    let answer = last.unwrap();
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    answer
}

fn assert_line(text: &str, line: &str) {
    assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
}

#[test]
fn each_route_answers_and_only_get_is_served() {
    let server = Server::start();
    let serving = Serving::start(&server, &[]);
    for (path, content_type) in [
        ("/", "text/html; charset=utf-8"),
        ("/page.css", "text/css; charset=utf-8"),
        ("/page.js", "text/javascript; charset=utf-8"),
        ("/api", "application/json"),
        ("/metrics", "text/plain; version=0.0.4; charset=utf-8"),
        ("/metrics?name=x", "text/plain; version=0.0.4; charset=utf-8"),
    ] {
        let answer = ready(serving.address, path);
        assert_eq!(answer.header("content-type"), content_type, "{path}");
        let policy = answer.header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; "), "{policy}");
        assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
        assert_eq!(answer.header("cache-control"), "no-store");
        // Nobody is told of our name.
        assert_eq!(answer.header("server"), "");
        for method in ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "BREW"] {
            let host = format!("Host: {}", serving.address);
            let answer = request(serving.address, method, path, &[&host], "x").unwrap();
            assert_eq!((answer.status, answer.header("allow")), (405, "GET"), "{method} {path}");
        }
    }
    for path in ["/favicon.ico", "/../page.js", "//api", "/page.html", "/api/", "/%61pi"] {
        assert_eq!(serving.get(path).status, 404, "{path}");
    }
}

#[test]
fn the_page_names_no_resource_of_another_site() {
    let server = Server::start();
    let serving = Serving::start(&server, &[]);
    for path in ["/", "/page.css", "/page.js"] {
        let text = serving.get(path).body.replace("http://www.w3.org/2000/svg", "");
        for outside in ["http:", "https:", "//cdn", "@import", "url(http", "innerHTML", "eval("] {
            assert!(!text.contains(outside), "{outside} in {path}");
        }
    }
}

#[test]
fn a_request_without_the_token_gets_nothing() {
    let server = Server::start();
    server.command(&["HSET", "secret-name", JAVA, "1"]);
    let file = TokenFile::new("token", &format!("{TOKEN}\n"));
    let serving = Serving::start(&server, &["--token-file", file.path()]);
    let host = format!("Host: {}", serving.address);
    let wrong = "Authorization: Bearer a-token-of-some-lengti";
    for path in ["/", "/page.js", "/api", "/metrics", "/other"] {
        for head in [&[host.as_str()][..], &[&host, wrong], &[&host, "Authorization: Basic eDp5"]] {
            let answer = get(serving.address, path, head);
            assert_eq!(answer.status, 401, "{path} {head:?}");
            assert!(answer.header("www-authenticate").starts_with("Basic realm="));
            assert!(!answer.body.contains("secret-name"));
        }
    }
    // As Prometheus and a browser send the token; the second is `prometheus:` and the token.
    let bearer = format!("Authorization: Bearer {TOKEN}");
    let basic = "Authorization: Basic cHJvbWV0aGV1czphLXRva2VuLW9mLXNvbWUtbGVuZ3Ro";
    for right in [bearer.as_str(), basic] {
        // Behind a proxy the host has any name.
        let answer = get(serving.address, "/api", &["Host: locks.example.com", right]);
        assert_eq!(answer.status, 200, "{right}: {}", answer.body);
        assert!(answer.body.contains("secret-name"));
    }
    serving.process.terminate();
    let (_, output) = ended(serving.process);
    assert!(!output.contains(TOKEN), "{output}");
}

#[test]
fn an_address_that_others_reach_needs_a_token() {
    let server = Server::start();
    let run = |words: &[&str]| {
        let words = [&["serve"], words].concat();
        let process = TestProcess::spawn(wheellock(&words).env("REDIS_URL", server.url()));
        let (code, output) = ended(process);
        assert_eq!(code, FAILED, "{output}");
        output
    };
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:9419"] {
        let output = run(&["--listen", address]);
        assert!(output.contains("give --token-file FILE"), "{output}");
    }
    for (name, text) in
        [("short", "short"), ("empty", ""), ("two", "line one of two\nline two of two")]
    {
        let file = TokenFile::new(name, text);
        let output = run(&["--listen", "0.0.0.0:0", "--token-file", file.path()]);
        assert!(output.contains("at least 16 visible signs"), "{output}");
        assert!(text.is_empty() || !output.contains(&format!(" {text}")), "{output}");
    }
    assert!(run(&["--token-file", "/no/such/file"]).contains("cannot be read"));
    assert!(run(&["--listen", "localhost"]).contains("--listen"));
    assert!(run(&["--prefix-separator", ""]).contains("--prefix-separator"));

    let file = TokenFile::new("good", TOKEN);
    let words = ["serve", "--listen", "0.0.0.0:0", "--token-file", file.path()];
    let serving = Serving::of(wheellock(&words).env("REDIS_URL", server.url()));
    let here = SocketAddr::from(([127, 0, 0, 1], serving.address.port()));
    let bearer = format!("Authorization: Bearer {TOKEN}");
    assert_eq!(get(here, "/api", &["Host: x", &bearer]).status, 200);
    // The port is taken.
    let taken = serving.address.to_string();
    let output = run(&["--listen", &taken, "--token-file", file.path()]);
    assert!(output.contains("--listen"), "{output}");
}

#[test]
fn another_host_name_is_refused_without_a_token() {
    let server = Server::start();
    let serving = Serving::start(&server, &[]);
    for head in [&["Host: example.com"][..], &["Host: localhost", "Host: example.com"], &["X: y"]] {
        let answer = get(serving.address, "/api", head);
        // hyper refuses what has no host or two.
        assert!([400, 421].contains(&answer.status), "{head:?}: {}", answer.status);
        assert!(!answer.body.contains("locks"), "{}", answer.body);
    }
    for host in ["Host: localhost:1", "Host: 127.0.0.1", "Host: [::1]:9419"] {
        assert_eq!(get(serving.address, "/api", &[host]).status, 200, "{host}");
    }
}

#[test]
fn metrics_count_holders_waiters_and_locks_without_an_end() {
    let server = Server::start();
    let serving = Serving::start(&server, &["--refresh", "0"]);
    let empty = serving.metrics();
    assert_line(&empty, r#"wheellock_server_locks{kind="fenced"} 0"#);

    let (_holder, _) = holding(&server, &["--fair"]);
    let _waiter = spawn(&server, &["--fair"], &["true"]);
    wait_until_one_waits(&server);
    // Two of Redisson: one without an end, one that is renewed.
    server.command(&["HSET", "orders:1", JAVA, "1"]);
    server.command(&["HSET", "orders:2", JAVA, "1"]);
    server.command(&["PEXPIRE", "orders:2", "600000"]);
    let lines = [
        r#"wheellock_server_holders{prefix="",library="wheellock"} 1"#,
        r#"wheellock_server_holders{prefix="orders",library="redisson"} 2"#,
        r#"wheellock_server_locks{kind="fair"} 1"#,
        r#"wheellock_server_locks_without_expiry{prefix="orders",library="redisson"} 1"#,
        r#"wheellock_server_locks_without_expiry{prefix="",library="wheellock"} 0"#,
        r#"wheellock_server_waiters{prefix=""} 1"#,
        r#"wheellock_server_waiters{prefix="orders"} 0"#,
    ];
    wait_until("the waiter is in the queue", PATIENCE, || {
        let text = serving.metrics();
        lines.iter().all(|line| text.lines().any(|found| found == *line))
    });
    // The age of a hold of Redisson grows while each scan finds the holder.
    let age = || {
        let prefix = r#"wheellock_server_oldest_hold_seconds{prefix="orders",library="redisson"} "#;
        let text = serving.metrics();
        let line = text.lines().find_map(|line| line.strip_prefix(prefix));
        line.unwrap().parse::<f64>().unwrap()
    };
    wait_until("the age grows", PATIENCE, || age() > 0.05);

    let api = serving.api();
    let scan = &api["scan"];
    assert_eq!((&scan["holders"], &scan["endless"]), (&Value::from(3), &Value::from(1)));
    let edges = scan["graph"]["edges"].as_array().unwrap();
    assert!(edges.iter().any(|edge| edge["kind"] == "waits"), "{edges:?}");
    assert!(edges.iter().any(|edge| edge["kind"] == "holds"), "{edges:?}");
}

#[test]
fn hostile_names_are_escaped_everywhere() {
    let server = Server::start();
    let long = "x".repeat(64 * 1024);
    let names = [
        "<script>alert(1)</script>:1",
        "\u{1b}]0;owned\u{7}\u{1b}[2J:1",
        "\u{9b}31m\u{7f}:1",
        "a\u{202e}exe.fdp:1",
        "line\nwheellock_server_holders{prefix=\"forged\"} 1:1",
        "quote\"back\\slash:1",
        &long,
    ];
    for name in names {
        server.command(&["HSET", name, JAVA, "1"]);
    }
    let serving = Serving::start(&server, &[]);
    let answer = ready(serving.address, "/api");
    assert!(answer.body.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
    let api: Value = serde_json::from_str(&answer.body).unwrap();
    let locks = api["scan"]["locks"].as_array().unwrap();
    let mut found: Vec<_> = locks.iter().map(|lock| lock["name"].as_str().unwrap()).collect();
    let mut expected = names;
    found.sort_unstable();
    expected.sort_unstable();
    assert!(found == expected, "{found:.200?}");

    let metrics = serving.metrics();
    assert!(metrics.chars().all(|letter| letter == '\n' || !letter.is_control()), "{metrics}");
    assert!(!metrics.contains('\u{202e}') && metrics.len() < 10_000);
    assert!(!metrics.lines().any(|line| line.contains("{prefix=\"forged")), "{metrics}");
    // 6 have a prefix of their own, and the long name has no separator.
    let holders = metrics.lines().filter(|line| line.starts_with("wheellock_server_holders{"));
    assert_eq!(holders.count(), 7);
}

#[test]
fn requests_within_the_refresh_time_share_one_scan() {
    let server = Server::start();
    let fill = "for i = 1, 1000 do redis.call('set', 'data:' .. i, 'x') end return 0";
    server.command(&["EVAL", fill, "0"]);
    server.command(&["HSET", "orders:1", JAVA, "1"]);
    let calls = || server.command_calls("scan");
    // What one scan costs.
    let before = calls();
    let mut list = wheellock(&["list"]);
    ended(TestProcess::spawn(list.env("REDIS_URL", server.url())));
    let pass = calls() - before;
    assert!(pass > 1, "{pass}");

    let serving = Serving::start(&server, &["--refresh", "3600"]);
    let (before, address) = (calls(), serving.address);
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                for path in ["/api", "/metrics", "/", "/api"] {
                    ready(address, path);
                }
            });
        }
    });
    assert_eq!(calls() - before, pass, "64 requests made more than one scan");
    assert_line(&serving.metrics(), r#"wheellock_server_scans_total{result="ok"} 1"#);

    // Nobody asks, and nobody scans: a server that starts asks for nothing.
    let before = calls();
    let idle = Serving::start(&server, &["--refresh", "0"]);
    assert_eq!(calls(), before);
    idle.api();
    assert_eq!(calls() - before, pass);
    wait_until("there is a second scan", PATIENCE, || {
        idle.api();
        calls() - before >= 2 * pass
    });
}

#[test]
fn a_server_that_is_gone_is_an_error_until_it_is_back() {
    let server = Server::start();
    server.command(&["HSET", "orders:1", JAVA, "1"]);
    let serving = Serving::start(&server, &["--refresh", "0"]);
    assert_eq!(serving.api()["scan"]["holders"], 1);
    server.kill();
    let mut last = None;
    wait_until("the scan fails", PATIENCE, || {
        let answer = serving.get("/api");
        let is_failed = answer.status == 503;
        last = Some(answer);
        is_failed
    });
    let answer: Value = serde_json::from_str(&last.unwrap().body).unwrap();
    assert!(answer["error"].as_str().unwrap().len() > 5, "{answer}");
    assert!(answer["age_ms"].as_u64().is_some() && answer["scan"].is_null(), "{answer}");
    let metrics = serving.get("/metrics");
    assert_eq!(
        (metrics.status, metrics.header("content-type")),
        (503, "text/plain; charset=utf-8")
    );
    assert!(metrics.body.len() > 5);
    // The page itself needs no server.
    assert_eq!(serving.get("/").status, 200);
    server.start_again();
    wait_until("the scan succeeds", PATIENCE, || serving.get("/api").status == 200);
    assert_eq!(serving.api()["scan"]["holders"], 0);
    assert!(!serving.metrics().contains("scans_total{result=\"failed\"} 0"));
}

#[test]
fn a_server_that_hangs_keeps_no_request() {
    let server = Server::start();
    let serving = Serving::start(&server, &["--refresh", "0"]);
    serving.api();
    server.pause();
    let address = serving.address;
    // The last scan, with its age, or an error; more than one at once.
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let answer = get(address, "/api", &[]);
                assert!([200, 503].contains(&answer.status), "{}", answer.body);
            });
        }
    });
    // A signal ends the program all the same.
    serving.process.terminate();
    assert_eq!(ended(serving.process).0, 143);
    server.resume();
}

#[test]
fn a_signal_ends_the_server() {
    let server = Server::start();
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let serving = Serving::start(&server, &[]);
        serving.api();
        // A connection on which nothing comes.
        let _silent = TcpStream::connect(serving.address).unwrap();
        send(id(&serving.process), signal);
        let (ended_with, output) = ended(serving.process);
        assert_eq!(ended_with, code, "{output}");
        assert_eq!(output.lines().count(), 1, "{output}");
    }
}

#[test]
fn an_interrupt_that_is_ignored_stays_so() {
    let server = Server::start();
    let program = env!("CARGO_BIN_EXE_wheellock");
    let mut command = Command::new("sh");
    let script = "trap '' INT; exec \"$0\" serve --listen 127.0.0.1:0";
    let serving = Serving::of(command.args(["-c", script, program]).env("REDIS_URL", server.url()));
    send(id(&serving.process), Signal::INT);
    send(id(&serving.process), Signal::TERM);
    // Only Linux tells what is ignored.
    let expected = if cfg!(target_os = "linux") { 143 } else { 130 };
    assert_eq!(ended(serving.process).0, expected);
}

#[test]
fn slow_and_large_requests_do_not_stop_others() {
    let server = Server::start();
    let serving = Serving::start(&server, &[]);
    // More than are served at once. Each is cut off when its time is over.
    let silent: Vec<_> = (0..80).map(|_| TcpStream::connect(serving.address).unwrap()).collect();
    ready(serving.address, "/api");
    drop(silent);
    for head in ["x: ".to_owned() + &"y".repeat(1 << 20), "x: y\r\n".repeat(200)] {
        let mut stream = TcpStream::connect(serving.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // The server may close before all is written, and may reset the connection then.
        stream
            .write_all(format!("GET / HTTP/1.1\r\nHost: localhost\r\n{head}\r\n").as_bytes())
            .ok();
        if let Ok(answer) = read(stream) {
            assert_eq!(answer.status, 431);
        }
    }
    ready(serving.address, "/api");
}
