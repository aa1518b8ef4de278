//! The service of the example `fencing_service` answers 204, 412 and 400, and keeps the order that
//! the newest holder has written.

use wheellock_fixture::TestProcess;

use crate::support::{PATIENCE, example};

#[test]
fn the_service_refuses_stale_missing_and_malformed_tokens() {
    let mut process = TestProcess::spawn(&mut example::<&str>("fencing_service", &[]));
    for line in [
        "slow   acquires the lock with token ",
        "slow   is paused for a minute",
        "quick  acquires the lock with token ",
        "quick  puts cancelled: 204",
        "slow   puts shipped: 412 the fencing token ",
        "       the order is cancelled",
        "other  puts shipped without a token: 400 fencing-token: ",
        "other  puts shipped with token seven: 400 fencing-token: ",
        "       the order is cancelled",
    ] {
        process.wait_for_line(line, PATIENCE);
    }
    assert_eq!(process.wait_for_exit(PATIENCE), 0, "{}", process.output());
}
