//! The example `lost_lock` finds the bug of its first program, and none in the mended one.

use wheellock_fixture::TestProcess;

use crate::support::{PATIENCE, example};

#[test]
fn a_fault_at_one_command_breaks_the_first_program_and_none_the_mended_one() {
    let mut process = TestProcess::spawn(&mut example::<&str>("lost_lock", &[]));
    for line in
        ["first:  a deposit is lost by Pause(60s) at command 2", "mended: no deposit is lost"]
    {
        process.wait_for_line(line, PATIENCE);
    }
    assert_eq!(process.wait_for_exit(PATIENCE), 0, "{}", process.output());
}
