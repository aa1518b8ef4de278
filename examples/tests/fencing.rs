//! The example `fencing`: the stale write is refused, and the holder told in the end.

mod support;

use wheellock_fixture::TestProcess;

use crate::support::{PATIENCE, example};

#[test]
fn the_stale_write_is_refused_and_its_holder_told() {
    let mut process = TestProcess::spawn(&mut example::<&str>("fencing", &[]));
    for line in [
        "slow   takes the lock with token",
        "quick  takes the lock with token",
        "slow   writes 101: refused, token",
        "       the balance is 150",
        "slow   asks at last: is_held is false",
    ] {
        process.wait_for_line(line, PATIENCE);
    }
    assert_eq!(process.wait_for_exit(PATIENCE), 0, "{}", process.output());
}
