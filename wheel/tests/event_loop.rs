//! The example of an event loop, with its real socket.

use std::collections::BTreeSet;

#[path = "../examples/event_loop.rs"]
#[expect(dead_code, reason = "its main function")]
mod event_loop;

#[test]
fn ten_thousand_sessions_are_all_closed_and_none_early() {
    let closed = event_loop::run(10_000).unwrap();
    // Some perhaps twice, if the client was delayed.
    let sessions: BTreeSet<u32> = closed.iter().map(|(session, _)| *session).collect();
    assert!(sessions.into_iter().eq(0..10_000));
    assert!(closed.iter().all(|(_, silent)| *silent >= event_loop::IDLE));
}
