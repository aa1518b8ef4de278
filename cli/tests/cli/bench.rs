//! `wheellock bench`.

use wheellock_fixture::{Server, TestProcess};

use crate::support::{SUCCESS, ended, wheellock};

#[test]
fn both_measurements_are_reported_and_nothing_is_left() {
    let server = Server::start();
    let mut bench = wheellock(&["bench", "--redis", &server.url(), "--seconds", "0.2"]);
    let (code, output) = ended(TestProcess::spawn(&mut bench));
    assert_eq!(code, SUCCESS, "{output}");
    for what in ["lock + unlock, uncontended: median ", "hand-over to a waiter of another client: "]
    {
        let line = output.lines().find(|line| line.starts_with(what)).unwrap_or_default();
        assert!(line.ends_with(" measured") && !line.ends_with(" 0 measured"), "{output}");
    }
    assert!(!output.contains('\r'), "no progress where there is no terminal");
    assert_eq!(server.command(&["DBSIZE"]).integer(), 0);
}
