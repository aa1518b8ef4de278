//! The operations guide's users for the command: the guide's lines suffice.

use rustix::process::Signal;
use wheellock_fixture::{Server, TestProcess, wait_until};

#[cfg(feature = "serve")]
use crate::http::get;
#[cfg(feature = "serve")]
use crate::support::{FAILED, holding, spawn, wait_until_one_waits};
use crate::support::{
    LOST, NOT_ACQUIRED, PATIENCE, SLEEP, SUCCESS, ended, id, process_id, send, wheellock,
};

const GUIDE: &str = include_str!("../../../lock/docs/operations.md");

/// A `wheellock doctor` whose worst check is `warn`.
const WARNED: i32 = 1;

/// A server with the users that the guide's lines of this beginning make, and how many lines.
pub(crate) fn server_with(beginning: &str) -> (Server, usize) {
    let server = Server::start();
    let mut lines = 0;
    for line in GUIDE.lines().filter(|line| line.starts_with(beginning)) {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(server.command(&words).text(), "OK", "{line}");
        lines += 1;
    }
    (server, lines)
}

/// A server, and how its user connects.
struct Asked {
    server: Server,
    url: String,
}

impl Asked {
    fn new(server: Server, user: &str) -> Self {
        let url = format!("redis://{user}:password@{}/", server.address());
        Self { server, url }
    }

    fn spawn(&self, words: &[&str]) -> TestProcess {
        TestProcess::spawn(wheellock(words).env("REDIS_URL", &self.url))
    }

    fn ran(&self, words: &[&str], expected: i32) -> String {
        let (code, output) = ended(self.spawn(words));
        assert_eq!(code, expected, "{words:?}: {output}");
        output
    }

    fn assert_nothing_refused(&self) {
        let refused = self.server.command(&["ACL", "LOG"]);
        assert!(refused.array().is_empty(), "{refused:?}");
    }
}

#[test]
fn the_guides_line_for_the_command_suffices() {
    let (server, lines) = server_with("ACL SETUSER command ");
    assert_eq!(lines, 2, "one line for locks, and one for jobs");
    let asked = Asked::new(server, "command");
    // 1. Run, with both outcomes.
    asked.ran(&["run", "orders:report", "--", "true"], SUCCESS);
    asked.ran(&["run", "--min-hold", "60", "orders:kept", "--", "true"], SUCCESS);
    asked.ran(&["run", "--no-wait", "orders:kept", "--", "true"], NOT_ACQUIRED);
    let slot = ["run", "--slot", "%F %H", "--retries", "1", "--retry-pause", "0", "orders:job"];
    asked.ran(
        &[&slot[..], &["--", "sh", "-c", "exit $((2 - WHEELLOCK_ATTEMPT))"]].concat(),
        SUCCESS,
    );
    let runs = asked.ran(&["jobs", "orders:job"], SUCCESS);
    assert!(runs.contains(": succeeded on ") && runs.contains("attempt 2"), "{runs}");
    // 2. Looking at locks.
    let mut watch = asked.spawn(&["watch", "orders:report"]);
    watch.wait_for_line("orders:report: not held", PATIENCE);
    let run = [&["run", "--watchdog", "5", "orders:report", "--"], SLEEP].concat();
    let mut holder = asked.spawn(&run);
    process_id(&mut holder);
    watch.wait_for_line("orders:report: fenced, held by wheellock", PATIENCE);
    let shown = asked.ran(&["status", "orders:report"], SUCCESS);
    assert!(shown.contains("orders:report: fenced, held by wheellock"), "{shown}");
    let listed = asked.ran(&["list", "orders:*"], SUCCESS);
    assert_eq!(listed.lines().count(), 2, "{listed}");
    // 3. A request, which a holder of a lock for a time hears.
    let polite = ["sh", "-c", "trap 'exit 0' TERM; echo works; while :; do sleep 0.05; done"];
    let mut asked_for = asked.spawn(&[&["run", "orders:asked", "--"], &polite[..]].concat());
    asked_for.wait_for_line("works", PATIENCE);
    wait_until("the holder hears", PATIENCE, || {
        ended(asked.spawn(&["ask", "--reason", "deploy", "orders:asked"])).0 == SUCCESS
    });
    assert_eq!(ended(asked_for).0, SUCCESS);
    // 4. A release by force: the next run begins, and the holder learns of its loss.
    let mut next = asked.spawn(&["run", "orders:report", "--", "echo", "mine"]);
    let released = asked.ran(&["unlock", "--force", "--yes", "orders:report"], SUCCESS);
    assert!(released.contains("orders:report: released"), "{released}");
    next.wait_for_line("mine", PATIENCE);
    assert_eq!(ended(next).0, SUCCESS);
    assert_eq!(ended(holder).0, LOST);
    send(id(&watch), Signal::INT);
    watch.wait_for_exit(PATIENCE);
    asked.assert_nothing_refused();
    // 5. The doctor tries what this user may not do, and says so.
    let checks = asked.ran(&["doctor", "--prefix", "orders:"], WARNED);
    assert!(checks.contains("ok    permissions "), "{checks}");
    assert!(checks.contains("warn  permissions_other "), "{checks}");
    assert!(checks.contains("ok    hand_over "), "{checks}");
}

#[test]
fn the_guides_user_of_plain_locks_and_its_additions_suffice() {
    let (server, lines) = server_with("ACL SETUSER locks ");
    assert_eq!(lines, 4, "a user, and what it may do besides");
    let asked = Asked::new(server, "locks");
    asked.ran(&["run", "orders:report", "--", "true"], SUCCESS);
    asked.ran(&["run", "--min-hold", "0.1", "orders:kept", "--", "true"], SUCCESS);
    let program = env!("CARGO_BIN_EXE_wheellock");
    let words = ["run", "orders:asked", "--", program, "status", "orders:asked"];
    let shown = asked.ran(&words, SUCCESS);
    assert!(shown.contains("orders:asked: fenced, held by"), "{shown}");
    asked.assert_nothing_refused();
}

#[cfg(feature = "serve")]
#[test]
fn the_guides_user_of_the_page_suffices_and_can_change_nothing() {
    let (server, lines) = server_with("ACL SETUSER page ");
    assert_eq!(lines, 1);
    let owner = "7f9a3b7e-0f0e-4c3f-9a51-2f4a5d8f0c11:42";
    server.command(&["HSET", "orders:lock", owner, "1"]);
    server.command(&["HSET", "orders:shared", "mode", "read", owner, "1"]);
    server.command(&["SET", "orders:simple", owner]);
    server.command(&["SET", "orders:number", "7"]);
    server.command(&["SET", "orders:data", "other data"]);
    let (_holder, _) = holding(&server, &["--fair"]);
    let _waiter = spawn(&server, &["--fair"], &["true"]);
    wait_until_one_waits(&server);
    let asked = Asked::new(server, "page");
    let words = ["serve", "--listen", "127.0.0.1:0", "--refresh", "0"];
    let mut process = asked.spawn(&words);
    let line = process.wait_for_line("listening on http://", PATIENCE);
    let address = line.trim_start_matches("listening on http://").trim_end_matches('/');
    let address = address.parse().unwrap();
    // The label of the holder and the waiter are known once their client has written its record.
    wait_until("all is shown", PATIENCE, || {
        let body = get(address, "/api", &[]).body;
        let parts = ["\"holders\":4", "\"waiters\":1", "\"unreadable\":0", "\"label\":\"wheellock"];
        parts.iter().all(|part| body.contains(part))
    });
    asked.ran(&["list"], SUCCESS);
    asked.assert_nothing_refused();
    // The user may change nothing.
    let url = format!("page:password@{}", asked.server.address());
    for words in
        [&["run", "orders:new", "--", "true"][..], &["unlock", "--force", "--yes", "orders:lock"]]
    {
        let mut command = wheellock(words);
        let (code, output) =
            ended(TestProcess::spawn(command.env("REDIS_URL", format!("redis://{url}/"))));
        assert_eq!(code, FAILED, "{words:?}: {output}");
    }
    assert_eq!(asked.server.command(&["HLEN", "orders:lock"]).integer(), 1);
}
