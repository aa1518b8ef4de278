//! The program that `run-tests` compiles with an earlier build of the library:
//! `first-build FOLDER PART KIND URL ..` does its part beside the present build.

mod sections;

use sections::{PERMITS, Program};
use wheellock::Semaphore;

fn under_permit(semaphore: &Semaphore, section: &mut dyn FnMut()) {
    semaphore.acquire(1).unwrap();
    section();
    semaphore.release(1).unwrap();
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().unwrap().into();
    let part = arguments.next().unwrap();
    let kind = arguments.next().unwrap();
    let urls = arguments.collect();
    let program = Program { urls, folder, side: 'f', under_permit, permits: PERMITS };
    program.take_part(&part, &kind);
}
