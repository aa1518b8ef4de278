//! A writer is killed after each step of its write.

use postgres::NoTls;

use crate::LIMIT;
use crate::child::standing_still;
use crate::kinds::{Place, Step, TestServers};

/// Whether this kind of resource has the step.
fn has_step(place: &Place, step: Step) -> bool {
    match place {
        Place::Postgres(_) | Place::Sqlite(_) => true,
        Place::PostgresColumn(_) | Place::SqliteColumn(_) => step != Step::Raised,
        Place::Redis(_) | Place::File(_) => matches!(step, Step::Begun | Step::Committed),
    }
}

fn a_token_is_burnt_only_if_it_was_committed(setup: &TestServers) {
    for place in setup.places() {
        let mut resource = place.open();
        let steps = Step::ALL.into_iter().filter(|step| has_step(&place, *step));
        for (round, step) in (1_u64..).zip(steps) {
            let tokens = round * 10;
            let context = format!("{place:?}, killed after {step:?}");
            resource.write(tokens, "before", &mut |_| {}).unwrap();
            let mut child = standing_still(&place, tokens + 2, step);
            child.kill();
            let between = resource.write(tokens + 1, "between", &mut |_| {});
            if step == Step::Committed {
                assert!(between.unwrap_err().contains("stale"), "{context}");
                assert_eq!(resource.read(), "of the killed writer", "{context}");
            } else {
                assert_eq!(between, Ok(()), "{context}");
                assert_eq!(resource.read(), "between", "{context}");
            }
            resource.write(tokens + 2, "after", &mut |_| {}).unwrap();
        }
    }
}

#[test]
fn sqlite_redis_and_files_use_up_token_only_after_commit() {
    a_token_is_burnt_only_if_it_was_committed(&TestServers::new());
}

#[test]
fn a_token_is_burnt_in_postgresql_only_if_it_was_committed() {
    if let Some(setup) = TestServers::with_postgres() {
        a_token_is_burnt_only_if_it_was_committed(&setup);
    }
}

#[test]
fn paused_postgres_transaction_blocks_only_until_idle_timeout() {
    let Some(setup) = TestServers::with_postgres() else { return };
    let parameters = setup.parameters();
    let mut admin = postgres::Client::connect(&parameters, NoTls).unwrap();
    admin
        .batch_execute("ALTER SYSTEM SET idle_in_transaction_session_timeout = 3000")
        .and_then(|()| admin.batch_execute("SELECT pg_reload_conf()"))
        .unwrap();
    let place = Place::Postgres(parameters);
    let child = standing_still(&place, 1, Step::Raised);
    child.pause();
    // It waits for the row of the token, until the server ends the paused transaction.
    place.open().write(2, "of the newer holder", &mut |_| {}).unwrap();
    assert_eq!(place.open().read(), "of the newer holder");
}

#[test]
fn a_file_whose_writer_is_paused_is_waited_for_with_a_limit() {
    let setup = TestServers::new();
    let path = setup.folder.0.join("report.csv");
    wheellock_fence::file::replace(&path, 1, b"1", LIMIT).unwrap();
    let lock = std::fs::File::open(path.with_file_name("report.csv.fence/lock")).unwrap();
    lock.lock().unwrap();
    for patience in [0, 1, 20].map(std::time::Duration::from_millis) {
        let refused = wheellock_fence::file::replace(&path, 2, b"2", patience).unwrap_err();
        let wheellock_fence::FenceError::Resource(error) = refused else { panic!("{refused}") };
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
        assert!(error.to_string().contains("report.csv"), "{error}");
    }
    assert_eq!(std::fs::read(&path).unwrap(), b"1");
}
