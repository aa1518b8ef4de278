//! The example `timer` runs to its end, and prints what its comments say.

use wheellock_fixture::TestProcess;

use crate::support::{PATIENCE, example};

#[test]
fn it_shows_both_clocks() {
    let mut process = TestProcess::spawn(&mut example::<&str>("timer", &[]));
    for line in [
        "On the system's clock",
        "  one shot: due after 20ms",
        "  cancel: in time: true, pending: 0",
        "  cancel again: in time: false",
        "  reschedule: from an hour to 10ms",
        "  stop: 2 tasks had not run",
        "  the first, run by hand",
        "  the second, run by hand",
        "  after stop: the timer is stopped",
        "On a manual clock",
        "  a second before: breakfast has run: false",
        "  on time: breakfast has run: true",
        "  lunch is cancelled: true",
        "  dinner is a day later, and has run: false",
        "  what ran: [\"breakfast\"]",
        "  stop: 1 task had not run",
    ] {
        process.wait_for_line(line, PATIENCE);
    }
    assert_eq!(process.wait_for_exit(PATIENCE), 0, "{}", process.output());
}
