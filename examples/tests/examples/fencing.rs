//! The example `fencing` refuses the stale write, and its holder learns of the loss.

use wheellock_fixture::TestProcess;

use crate::support::{PATIENCE, example};

#[test]
fn the_stale_write_is_refused_and_its_holder_learns_of_the_loss() {
    let mut process = TestProcess::spawn(&mut example::<&str>("fencing", &[]));
    for line in [
        "slow   acquires the lock with token",
        "quick  acquires the lock with token",
        "slow   writes 101: refused, token",
        "       the balance is 150",
        "slow   checks now: is_held is false",
    ] {
        process.wait_for_line(line, PATIENCE);
    }
    assert_eq!(process.wait_for_exit(PATIENCE), 0, "{}", process.output());
}
