//! The example `lost_lock` finds the bug of its first program, and none in the mended one.

use wheellock_fixture::TestProcess;

use crate::support::{PATIENCE, example};

#[test]
fn fault_at_single_command_breaks_only_first_program() {
    let mut process = TestProcess::spawn(&mut example::<&str>("lost_lock", &[]));
    for line in
        ["first:  a deposit is lost by Pause(60s) at command 2", "mended: no deposit is lost"]
    {
        process.wait_for_line(line, PATIENCE);
    }
    assert_eq!(process.wait_for_exit(PATIENCE), 0, "{}", process.output());
}
