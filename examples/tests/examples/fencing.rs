//! The example `fencing` refuses the stale write, and shows what the write does without a fence.

use wheellock_fixture::TestProcess;

use crate::support::{PATIENCE, example};

/// What an example prints that tells the story with the fence and without the fence.
pub(crate) const BOTH_STORIES: [&str; 14] = [
    "With the fence:",
    "slow   acquires the lock with token ",
    "slow   is paused for a minute",
    "quick  acquires the lock with token ",
    "quick  writes 150",
    "slow   writes 101: refused, the fencing token ",
    "       the balance is 150",
    "slow   checks now: is_held is false, and unlock returns Err(Lost",
    "Without the fence:",
    "quick  acquires the lock with token ",
    "quick  writes 150",
    "slow   writes 101, over what quick wrote",
    "       the balance is 101",
    "slow   checks now: is_held is false, and unlock returns Err(Lost",
];

#[test]
fn sqlite_refuses_the_stale_write_with_a_fence_only() {
    let mut process = TestProcess::spawn(&mut example::<&str>("fencing", &[]));
    for line in BOTH_STORIES {
        process.wait_for_line(line, PATIENCE);
    }
    assert_eq!(process.wait_for_exit(PATIENCE), 0, "{}", process.output());
}
