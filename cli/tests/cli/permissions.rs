//! The operations guide's user for `wheellock run` and `wheellock status`: its lines suffice.

use wheellock_fixture::{Server, TestProcess};

use crate::support::{SUCCESS, ended, wheellock};

const GUIDE: &str = include_str!("../../../lock/docs/operations.md");

#[test]
fn the_guides_user_runs_a_command_and_asks_for_its_lock() {
    let server = Server::start();
    let mut lines = 0;
    for line in GUIDE.lines().filter(|line| line.starts_with("ACL SETUSER locks ")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(server.command(&words).text(), "OK", "{line}");
        lines += 1;
    }
    assert_eq!(lines, 4, "a user, and what it may do besides");
    let url = format!("redis://locks:password@{}/", server.address());
    let ran = |words: &[&str]| {
        let (code, output) = ended(TestProcess::spawn(wheellock(words).env("REDIS_URL", &url)));
        assert_eq!(code, SUCCESS, "{words:?}: {output}");
        output
    };
    ran(&["run", "orders:report", "--", "true"]);
    ran(&["run", "--min-hold", "0.1", "orders:kept", "--", "true"]);
    let program = env!("CARGO_BIN_EXE_wheellock");
    let shown = ran(&["run", "orders:asked", "--", program, "status", "orders:asked"]);
    assert!(shown.contains("orders:asked: fenced, held by"), "{shown}");
    let refused = server.command(&["ACL", "LOG"]);
    assert!(refused.array().is_empty(), "{refused:?}");
}
