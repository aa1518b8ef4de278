//! What a read-write lock does: one suite, run in memory and on a real server.

#![expect(clippy::panic, clippy::unwrap_used, reason = "what fails here is a failed test")]

use std::time::Duration;

use crate::common::expected::{Expected, lost};
use crate::common::is_wrong_type;
use crate::common::stores::{TestStore, on_both_stores};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use wheellock::{Client, Error, Lock, LockGuard, LostReason};

const LEASE: Duration = Duration::from_secs(30);
const HOUR: Duration = Duration::from_secs(3600);

/// The fields of a hash with their values, in order.
fn fields(setup: &TestStore, key: &str) -> Vec<(String, String)> {
    let mut fields = setup.fields(key);
    fields.sort();
    fields
}

/// How long a level of a reader's nesting has to live.
fn level(setup: &TestStore, name: &str, owner: &str, number: u32) -> Option<Duration> {
    setup.time_to_live(&format!("{{{name}}}:{owner}:rwlock_timeout:{number}"))
}

fn read(client: &Client) -> Lock {
    client.read_write_lock("a").read_lock()
}

fn write(client: &Client) -> Lock {
    client.read_write_lock("a").write_lock()
}

fn pair(field: impl Into<String>, value: &str) -> (String, String) {
    (field.into(), value.to_owned())
}

/// What stands in the hash, in order.
fn hash(mode: &str, holds: &[(String, u32)]) -> Vec<(String, String)> {
    let holds = holds.iter().map(|(field, count)| pair(field, &count.to_string()));
    let mut fields: Vec<_> = std::iter::once(pair("mode", mode)).chain(holds).collect();
    fields.sort();
    fields
}

fn writer(guard: &LockGuard) -> String {
    format!("{}:write", guard.owner())
}

fn is_free(lock: &Lock) -> bool {
    lock.try_lock().unwrap().is_some()
}

/// A time to live that was just given.
fn is_about(left: Option<Duration>, lease: Duration) -> bool {
    left.is_some_and(|left| left <= lease && left + Duration::from_secs(5) > lease)
}

on_both_stores! {
    fn a_read_hold_is_a_mode_a_field_and_a_key_for_its_level(setup: &TestStore) {
        let client = setup.client();
        let guard = read(&client).lock().unwrap();
        assert_eq!(fields(setup, "a"), hash("read", &[(guard.owner().to_owned(), 1)]));
        assert!(is_about(setup.time_to_live("a"), LEASE));
        assert!(is_about(level(setup, "a", guard.owner(), 1), LEASE));
        let owner = guard.owner().to_owned();
        guard.unlock().unwrap();
        assert_eq!(fields(setup, "a"), []);
        assert_eq!(level(setup, "a", &owner, 1), None);
    }

    fn a_write_hold_is_a_mode_and_a_field_with_an_ending(setup: &TestStore) {
        let client = setup.client();
        let guard = write(&client).lock().unwrap();
        assert_eq!(fields(setup, "a"), hash("write", &[(writer(&guard), 1)]));
        assert!(is_about(setup.time_to_live("a"), LEASE));
        guard.unlock().unwrap();
        assert_eq!(fields(setup, "a"), []);
    }

    fn readers_share_and_keep_writers_out_until_the_last_has_gone(setup: &TestStore) {
        let (one, other) = (setup.client(), setup.client());
        let first = read(&one).lock().unwrap();
        let second = read(&other).lock().unwrap();
        let third = setup.client();
        assert!(!is_free(&write(&third)));
        first.unlock().unwrap();
        assert!(second.is_held());
        assert!(!is_free(&write(&third)));
        second.unlock().unwrap();
        assert!(is_free(&write(&third)));
    }

    fn a_writer_keeps_readers_and_writers_out(setup: &TestStore) {
        let (one, other) = (setup.client(), setup.client());
        let writing = write(&one).lock().unwrap();
        assert!(!is_free(&write(&other)));
        assert!(!is_free(&read(&other)));
        writing.unlock().unwrap();
        assert!(is_free(&read(&other)));
    }

    fn each_level_of_a_readers_nesting_has_a_key(setup: &TestStore) {
        let client = setup.client();
        let outer = read(&client).lock().unwrap();
        let inner = read(&client).with_lease(HOUR).lock().unwrap();
        assert_eq!(inner.owner(), outer.owner());
        assert_eq!(fields(setup, "a"), hash("read", &[(outer.owner().to_owned(), 2)]));
        assert!(is_about(level(setup, "a", outer.owner(), 1), LEASE));
        assert!(is_about(level(setup, "a", outer.owner(), 2), HOUR));
        assert!(is_about(setup.time_to_live("a"), HOUR));
        let owner = inner.owner().to_owned();
        outer.unlock().unwrap();
        // The guard that is left was granted an hour, and so was the level that is left.
        assert!(is_about(level(setup, "a", &owner, 1), HOUR));
        assert_eq!(level(setup, "a", &owner, 2), None);
        assert!(inner.is_held());
        inner.unlock().unwrap();
        assert_eq!(level(setup, "a", &owner, 1), None);
    }

    fn d22_a_writers_nesting_does_not_add_leases(setup: &TestStore) {
        let client = setup.client();
        let guards: Vec<LockGuard> = (0..4).map(|_| write(&client).lock().unwrap()).collect();
        assert_eq!(fields(setup, "a"), hash("write", &[(writer(&guards[0]), 4)]));
        assert!(is_about(setup.time_to_live("a"), LEASE));
    }

    fn d8_a_read_unlock_does_not_shorten_the_writers_time_to_live(setup: &TestStore) {
        let client = setup.client();
        let writing = write(&client).with_lease(HOUR).lock().unwrap();
        let reading = read(&client).with_lease(LEASE).lock().unwrap();
        assert!(is_about(setup.time_to_live("a"), HOUR));
        reading.unlock().unwrap();
        assert!(is_about(setup.time_to_live("a"), HOUR));
        assert!(writing.is_held());
        writing.unlock().unwrap();
    }

    fn a_writer_may_read_and_keeps_reading_after_its_write_unlock(setup: &TestStore) {
        let (client, other) = (setup.client(), setup.client());
        let writing = write(&client).with_lease(HOUR).lock().unwrap();
        let reading = read(&client).lock().unwrap();
        assert_eq!(
            fields(setup, "a"),
            hash("write", &[(writer(&writing), 1), (reading.owner().to_owned(), 1)])
        );
        assert!(!is_free(&read(&other)));
        writing.unlock().unwrap();
        assert_eq!(fields(setup, "a"), hash("read", &[(reading.owner().to_owned(), 1)]));
        // The hour was the writer's.
        assert!(is_about(setup.time_to_live("a"), LEASE));
        assert!(reading.is_held());
        assert!(is_free(&read(&other)));
        assert!(!is_free(&write(&other)));
        reading.unlock().unwrap();
        assert!(is_free(&write(&other)));
    }

    fn second_read_hold_under_a_write_hold_has_its_own_owner(setup: &TestStore) {
        let client = setup.client();
        let _writing = write(&client).lock().unwrap();
        let first = read(&client).lock().unwrap();
        let owner = first.owner().to_owned();
        first.unlock().unwrap();
        let second = read(&client).lock().unwrap();
        assert_ne!(second.owner(), owner, "a late release of the first would end the second");
    }

    fn a_reader_that_wants_to_write_gets_an_error_at_once(setup: &TestStore) {
        let client = setup.client();
        let reading = read(&client).lock().unwrap();
        let upgrade = Expected::Upgrade("a".to_owned());
        assert_eq!(write(&client).try_lock().map(drop), upgrade);
        assert_eq!(write(&client).try_lock_for(HOUR).map(drop), upgrade);
        assert_eq!(write(&client).lock().map(drop), upgrade);
        assert!(reading.is_held());
        reading.unlock().unwrap();
        assert!(is_free(&write(&client)));
    }

    fn a_holder_of_both_may_nest_either(setup: &TestStore) {
        let client = setup.client();
        let writing = write(&client).lock().unwrap();
        let reading = read(&client).lock().unwrap();
        let again = [write(&client).lock().unwrap(), read(&client).lock().unwrap()];
        let holds = [(writer(&writing), 2), (reading.owner().to_owned(), 2)];
        assert_eq!(fields(setup, "a"), hash("write", &holds));
        for guard in again {
            guard.unlock().unwrap();
        }
        writing.unlock().unwrap();
        assert!(reading.is_held());
        // Now it only reads.
        assert!(matches!(write(&client).try_lock(), Err(Error::Upgrade { .. })));
    }

    fn is_locked_reports_read_holds_and_write_holds_separately(
        setup: &TestStore
    ) {
        let client = setup.client();
        let locked = || (read(&client).is_locked().unwrap(), write(&client).is_locked().unwrap());
        assert_eq!(locked(), (false, false));
        let writing = write(&client).lock().unwrap();
        assert_eq!(locked(), (false, true));
        let reading = read(&client).lock().unwrap();
        assert_eq!(locked(), (true, true));
        writing.unlock().unwrap();
        assert_eq!(locked(), (true, false));
        reading.unlock().unwrap();
        assert_eq!(locked(), (false, false));
    }

    fn a_forced_end_of_reading_ends_every_reader_and_no_writer(setup: &TestStore) {
        let (client, other) = (setup.client(), setup.client());
        let reading = read(&client).lock().unwrap();
        assert!(!write(&other).force_unlock().unwrap());
        assert!(reading.is_held());
        assert!(read(&client).force_unlock().unwrap());
        assert_eq!(reading.lost().try_recv(), Ok(LostReason::Deleted));
        drop(reading);
        let writing = write(&client).lock().unwrap();
        let reading = read(&client).lock().unwrap();
        assert!(!read(&client).force_unlock().unwrap());
        assert!(reading.is_held() && writing.is_held());
        writing.unlock().unwrap();
        reading.unlock().unwrap();
    }

    fn a_forced_end_of_writing_ends_what_the_writer_reads_too(setup: &TestStore) {
        let client = setup.client();
        let writing = write(&client).lock().unwrap();
        let reading = read(&client).lock().unwrap();
        assert!(write(&client).force_unlock().unwrap());
        assert_eq!(writing.lost().try_recv(), Ok(LostReason::Deleted));
        assert_eq!(reading.lost().try_recv(), Ok(LostReason::Deleted));
        assert_eq!(fields(setup, "a"), []);
    }

    fn a_hold_of_another_kind_under_the_name_excludes(setup: &TestStore) {
        let (client, other) = (setup.client(), setup.client());
        let guard = other.lock("a").lock().unwrap();
        assert!(!is_free(&read(&client)));
        assert!(!is_free(&write(&client)));
        guard.unlock().unwrap();
        let _reading = read(&client).lock().unwrap();
        assert!(!is_free(&other.lock("a")));
    }

    fn a_key_that_is_no_lock_is_an_error_and_stays(setup: &TestStore) {
        let client = setup.client();
        setup.put_text("a");
        for lock in [read(&client), write(&client)] {
            assert!(is_wrong_type(&lock.try_lock().map(drop).unwrap_err(), "a"));
            assert!(is_wrong_type(&lock.is_locked().map(drop).unwrap_err(), "a"));
            assert!(is_wrong_type(&lock.force_unlock().map(drop).unwrap_err(), "a"));
        }
        assert!(client.lock("a").is_locked().unwrap());
    }

    fn a_wrong_name_or_lease_is_an_error_of_both_locks(setup: &TestStore) {
        let client = setup.client();
        let nameless = client.read_write_lock("");
        for lock in [nameless.read_lock(), nameless.write_lock()] {
            assert!(matches!(lock.try_lock(), Err(Error::InvalidName { .. })));
            assert!(matches!(lock.is_locked(), Err(Error::InvalidName { .. })));
        }
        for lock in [read(&client), write(&client)] {
            let short = lock.with_lease(Duration::from_millis(9));
            assert!(matches!(short.try_lock(), Err(Error::InvalidLease { .. })));
        }
    }

    fn d20_the_unlock_of_a_hold_that_is_gone_says_so(setup: &TestStore) {
        let client = setup.client();
        for lock in [read(&client), write(&client)] {
            let guard = lock.lock().unwrap();
            setup.delete("a");
            let lost = lost("a", LostReason::Deleted);
            assert_eq!(guard.unlock(), lost);
        }
    }

    fn a_reader_that_was_removed_does_not_affect_the_others(setup: &TestStore) {
        let (client, other) = (setup.client(), setup.client());
        let guard = read(&client).lock().unwrap();
        setup.delete("a");
        let reading = read(&other).lock().unwrap();
        let lost = lost("a", LostReason::TakenOver);
        assert_eq!(guard.unlock(), lost);
        assert_eq!(fields(setup, "a"), hash("read", &[(reading.owner().to_owned(), 1)]));
        reading.unlock().unwrap();
    }

    fn names_with_braces_are_written_as_redisson_writes_them(setup: &TestStore) {
        let client = setup.client();
        let guard = client.read_write_lock("{b}c").read_lock().lock().unwrap();
        let level = format!("{{b}}c:{}:rwlock_timeout:1", guard.owner());
        assert!(is_about(setup.time_to_live(&level), LEASE));
    }

    fn in_every_order_of_one_thread_guards_and_server_agree(setup: &TestStore) {
        let cases = if matches!(setup, TestStore::Memory(_)) { 300 } else { 60 };
        let config = Config { cases, source_file: Some(file!()), ..Config::default() };
        TestRunner::new(config)
            .run(&prop::collection::vec(step(), 1..30), |steps| {
                setup.delete("a");
                let client = setup.client();
                let mut held = Held::default();
                for step in &steps {
                    held.perform(&client, *step)?;
                    held.agrees_with(setup)?;
                }
                Ok(())
            })
            .unwrap_or_else(|failure| panic!("{failure}"));
    }
}

/// What a thread does next.
#[derive(Clone, Copy, Debug)]
enum Step {
    Read(Option<u64>),
    Write(Option<u64>),
    /// Lets go of one of its guards.
    LetGo(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    let lease = prop::option::of(60..7200_u64);
    prop_oneof![
        3 => lease.clone().prop_map(Step::Read),
        2 => lease.prop_map(Step::Write),
        4 => any::<prop::sample::Index>().prop_map(Step::LetGo),
    ]
}

/// The guards of one thread.
#[derive(Default)]
struct Held {
    reads: Vec<LockGuard>,
    writes: Vec<LockGuard>,
}

impl Held {
    fn perform(&mut self, client: &Client, step: Step) -> Result<(), TestCaseError> {
        let with = |lock: Lock, lease: Option<u64>| match lease {
            Some(seconds) => lock.with_lease(Duration::from_secs(seconds)),
            None => lock,
        };
        match step {
            Step::Read(lease) => {
                self.reads.push(with(read(client), lease).try_lock().unwrap().unwrap());
            }
            Step::Write(lease) => match with(write(client), lease).try_lock() {
                Ok(guard) => self.writes.push(guard.unwrap()),
                Err(error) => {
                    prop_assert!(matches!(error, Error::Upgrade { .. }), "{error}");
                    prop_assert!(self.writes.is_empty() && !self.reads.is_empty());
                }
            },
            Step::LetGo(which) => {
                let all = self.reads.len() + self.writes.len();
                if all > 0 {
                    let place = which.index(all);
                    let guard = match place.checked_sub(self.reads.len()) {
                        None => self.reads.remove(place),
                        Some(place) => self.writes.remove(place),
                    };
                    prop_assert_eq!(guard.unlock(), Ok(()));
                }
            }
        }
        Ok(())
    }

    fn agrees_with(&self, setup: &TestStore) -> Result<(), TestCaseError> {
        let count = |guards: &[LockGuard]| u32::try_from(guards.len()).unwrap();
        let mut holds = Vec::new();
        holds.extend(self.reads.first().map(|one| (one.owner().to_owned(), count(&self.reads))));
        holds.extend(self.writes.first().map(|one| (writer(one), count(&self.writes))));
        let mode = if self.writes.is_empty() { "read" } else { "write" };
        let expected = if holds.is_empty() { Vec::new() } else { hash(mode, &holds) };
        prop_assert_eq!(fields(setup, "a"), expected);
        let left = setup.time_to_live("a").unwrap_or_default();
        for guard in self.reads.iter().chain(&self.writes) {
            prop_assert!(guard.is_held());
            prop_assert!(guard.remaining() <= left, "{guard:?} has {left:?} on the server");
        }
        let Some(reader) = self.reads.first() else { return Ok(()) };
        let levels = |number| level(setup, "a", reader.owner(), number);
        let all: Vec<_> = (1..=count(&self.reads)).map(levels).collect();
        prop_assert!(all.iter().all(Option::is_some), "{all:?}");
        prop_assert_eq!(levels(count(&self.reads) + 1), None);
        // What Redisson's read unlock would leave.
        let longest = all.into_iter().flatten().max().unwrap_or_default();
        // An older server's clock may go on by a millisecond within one script.
        prop_assert!(longest <= left + Duration::from_millis(5), "{longest:?} of {left:?}");
        prop_assert!(reader.remaining() <= longest);
        Ok(())
    }
}
