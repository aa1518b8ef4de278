//! Many writers at once: what is there in the end is what the newest token has written.

use std::sync::Mutex;
use std::thread;

use crate::kinds::TestServers;

const WRITERS: u64 = 4;
const ROUNDS: u64 = 25;

fn the_newest_token_wins(setup: &TestServers) {
    for place in setup.places() {
        drop(place.open());
        let newest = Mutex::new(0);
        thread::scope(|scope| {
            for writer in 0..WRITERS {
                let (place, newest) = (&place, &newest);
                let write = move || {
                    let mut resource = place.open();
                    for _ in 0..ROUNDS {
                        // Some have a token that another has too, and some are stale.
                        let token = 1 + fastrand::u64(..WRITERS * ROUNDS);
                        let text = format!("{token} of {writer}");
                        if resource.write(token, &text, &mut |_| {}).is_ok() {
                            let mut newest = newest.lock().unwrap();
                            *newest = token.max(*newest);
                        }
                    }
                };
                thread::Builder::new().spawn_scoped(scope, write).unwrap();
            }
        });
        let text = place.open().read();
        let token = text.split(' ').next().unwrap();
        assert_eq!(token, newest.into_inner().unwrap().to_string(), "{place:?}: {text}");
    }
}

#[test]
fn the_newest_token_wins_in_sqlite_redis_and_files() {
    the_newest_token_wins(&TestServers::new());
}

#[test]
fn the_newest_token_wins_in_postgresql() {
    if let Some(setup) = TestServers::with_postgres() {
        the_newest_token_wins(&setup);
    }
}
