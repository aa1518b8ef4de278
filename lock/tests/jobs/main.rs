//! Jobs: a slot runs once, on one client of all, and is taken over when a run fails.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failed unwrap is a failed test, and so is another outcome"
)]

#[path = "../common/mod.rs"]
mod common;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;
use std::time::{Duration, SystemTime};

use crate::common::in_memory::InMemory;
use crate::common::stores::{TestStore, on_all_stores};
use crate::common::{SOON, wait_for_a_waiter};
use wheellock::crossbeam_channel::bounded;
use wheellock::{Client, Error, Job, LostReason, RunOutcome, RunRecord, RunStart, RunState, Wait};
use wheellock_fixture::{Fault, Request};

const HOUR: Duration = Duration::from_secs(3600);
const KEYS: [&str; 4] = [
    "wheellock_job_lock:{report}:noon",
    "wheellock_job_record:{report}:noon",
    "wheellock_job_token:{report}",
    "wheellock_job_runs:{report}",
];

type Outcome = RunOutcome<u64, &'static str>;

fn job(client: &Client) -> Job {
    client.job("report").with_retention(HOUR)
}

/// Runs it, and answers its token.
fn succeed(job: &Job, slot: &str) -> Result<Outcome, Error> {
    job.run_once(slot, |run| Ok(run.token()))
}

fn fail(job: &Job, slot: &str) -> Result<Outcome, Error> {
    job.run_once(slot, |_| Err("on purpose"))
}

fn never(job: &Job, slot: &str) -> Result<Outcome, Error> {
    job.run_once(slot, |_| unreachable!("it must not run"))
}

on_all_stores! {
    fn a_slot_runs_once_and_other_slots_and_jobs_run_too(setup: &TestStore) {
        let [client, other] = [setup.client(), setup.client()];
        let RunOutcome::Ran(token) = succeed(&job(&client), "noon").unwrap() else { panic!() };
        for client in [&client, &other] {
            assert!(matches!(never(&job(client), "noon"), Ok(RunOutcome::RanAlready)));
        }
        let RunOutcome::Ran(later) = succeed(&job(&other), "midnight").unwrap() else { panic!() };
        assert!(later > token);
        assert!(matches!(succeed(&other.job("cleanup"), "noon"), Ok(RunOutcome::Ran(_))));
    }

    fn jobs_and_slots_whose_texts_join_to_one_run_apart(setup: &TestStore) {
        let client = setup.client();
        for (name, slot) in [
            ("report", "noon"),
            ("{report}", "noon"),
            ("{orders}:import", "eu"),
            ("{orders}", "import:eu"),
            ("{a}:b", "c:d"),
            ("{a}:b:c", "d"),
        ] {
            let outcome = succeed(&client.job(name), slot);
            assert!(matches!(outcome, Ok(RunOutcome::Ran(_))), "{name} {slot}: {outcome:?}");
        }
    }

    fn whatever_a_job_leaves_has_a_time_to_live(setup: &TestStore) {
        let client = setup.client();
        drop(succeed(&job(&client), "noon").unwrap());
        common::settle(&client);
        let [lock, record, token, runs] = KEYS;
        assert_eq!(setup.time_to_live(lock), None);
        for key in [record, token, runs] {
            let left = setup.time_to_live(key).unwrap();
            assert!(left <= HOUR && left > HOUR * 9 / 10, "{key}: {left:?}");
        }
    }

    fn a_run_that_fails_or_panics_is_taken_over_as_often_as_allowed(setup: &TestStore) {
        let [client, other] = [setup.client(), setup.client()];
        assert!(matches!(fail(&job(&client), "noon"), Ok(RunOutcome::Failed("on purpose"))));
        common::settle(&client);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            job(&other).run_once("noon", |run| -> Result<(), ()> {
                assert_eq!(run.attempt(), 2);
                resume_unwind(Box::new("through the call"))
            })
        }));
        assert_eq!(panicked.unwrap_err().downcast_ref(), Some(&"through the call"));
        common::settle(&other);
        assert!(matches!(fail(&job(&client), "noon"), Ok(RunOutcome::Failed(_))));
        common::settle(&client);
        for client in [&client, &other] {
            assert!(matches!(never(&job(client), "noon"), Ok(RunOutcome::AttemptsUsedUp)));
            common::settle(client);
        }
        let patient = job(&client).with_max_attempts(4);
        assert!(matches!(succeed(&patient, "noon"), Ok(RunOutcome::Ran(_))));
        assert!(matches!(never(&job(&client), "noon"), Ok(RunOutcome::RanAlready)));
    }

    fn a_slot_that_runs_elsewhere_is_not_run_here(setup: &TestStore) {
        let [client, other] = [setup.client(), setup.client()];
        let outcome = job(&client).run_once("noon", |run| {
            assert!(run.is_held() && run.check().is_ok() && run.slot() == "noon");
            assert!(matches!(never(&job(&other), "noon"), Ok(RunOutcome::RunningElsewhere)));
            let own = never(&job(&client), "noon");
            assert!(matches!(own, Ok(RunOutcome::RunningElsewhere)), "{own:?}");
            let wait = Wait::at_most(Duration::from_millis(700));
            let waited: Result<Outcome, _> =
                job(&other).run_once_with("noon", wait, |_| unreachable!("it must not run"));
            assert!(matches!(waited, Ok(RunOutcome::RunningElsewhere)), "{waited:?}");
            Ok::<_, ()>(())
        });
        assert!(matches!(outcome, Ok(RunOutcome::Ran(()))), "{outcome:?}");
    }

    fn a_process_that_waits_takes_over_or_learns_of_the_success(setup: &TestStore) {
        let [client, other] = [setup.client(), setup.client()];
        for succeeds in [false, true] {
            let slot = if succeeds { "noon" } else { "midnight" };
            let (begins, begun) = bounded(1);
            let (go, going) = bounded(1);
            let waited: Outcome = thread::scope(|scope| {
                let job_here = job(&client);
                let here = scope.spawn(move || {
                    job_here.run_once(slot, |_| {
                        begins.send(()).unwrap();
                        going.recv_timeout(SOON).unwrap();
                        if succeeds { Ok(()) } else { Err(()) }
                    })
                });
                begun.recv_timeout(SOON).unwrap();
                let elsewhere = scope.spawn(|| {
                    job(&other).run_once_with(slot, Wait::forever(), |run| Ok(run.attempt().into()))
                });
                wait_for_a_waiter(&other);
                go.send(()).unwrap();
                drop(here.join().unwrap().unwrap());
                elsewhere.join().unwrap().unwrap()
            });
            match waited {
                RunOutcome::RanAlready => assert!(succeeds),
                RunOutcome::Ran(attempt) => assert!(!succeeds && attempt == 2),
                other => panic!("{other:?}"),
            }
        }
    }

    fn a_run_whose_lock_was_lost_is_not_recorded(setup: &TestStore) {
        let [client, other] = [setup.client(), setup.client()];
        let outcome = job(&client).run_once("noon", |run| {
            setup.delete(KEYS[0]);
            let RunOutcome::Ran(token) = succeed(&job(&other), "noon").unwrap() else { panic!() };
            assert!(token > run.token());
            Ok::<_, ()>(7)
        });
        let Ok(RunOutcome::Unrecorded { value: 7, error, .. }) = outcome else { panic!("{outcome:?}") };
        assert!(matches!(error, Error::Lost { .. }), "{error}");
        assert!(matches!(never(&job(&client), "noon"), Ok(RunOutcome::RanAlready)));
        // Nobody has taken it over: it is not done.
        let outcome = job(&client).run_once("midnight", |_| {
            setup.delete("wheellock_job_lock:{report}:midnight");
            Ok::<_, ()>(7)
        });
        assert!(matches!(outcome, Ok(RunOutcome::Unrecorded { .. })), "{outcome:?}");
        assert!(matches!(succeed(&job(&client), "midnight"), Ok(RunOutcome::Ran(_))));
    }

    fn the_last_runs_are_listed_with_their_ends(setup: &TestStore) {
        let [client, other] = [setup.client(), setup.client()];
        assert_eq!(job(&client).runs().unwrap(), []);
        let RunOutcome::Ran(token) = succeed(&job(&client), "succeeds").unwrap() else { panic!() };
        drop(fail(&job(&client), "fails").unwrap());
        // Its release has arrived, or the other finds the slot running.
        common::settle(&client);
        assert!(matches!(fail(&job(&other), "fails").unwrap(), RunOutcome::Failed(_)));
        let panics = || job(&client).run_once("panics", |_| -> Result<(), ()> { panic!("on purpose") });
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        // A process that dies: the key ends with the lease.
        let dies = job(&client).begin("dies", Wait::none()).unwrap();
        let RunStart::Begun(dies) = dies else { panic!("{dies:?}") };
        setup.delete("wheellock_job_lock:{report}:dies");
        let RunStart::Begun(process) = job(&other).begin("process", Wait::none()).unwrap() else { panic!() };
        process.finish(7).unwrap();
        let RunStart::Begun(running) = job(&other).begin("running", Wait::none()).unwrap() else { panic!() };
        common::settle(&client);
        let mut runs = job(&client).runs().unwrap();
        runs.sort_by_key(|run| run.slot.clone());
        let ends: Vec<_> =
            runs.iter().map(|run| (run.slot.as_str(), run.state, run.attempts, run.exit_code)).collect();
        assert_eq!(ends, [
            ("dies", RunState::Died, 1, None),
            ("fails", RunState::Failed, 2, None),
            ("panics", RunState::Died, 1, None),
            ("process", RunState::Failed, 1, Some(7)),
            ("running", RunState::Running, 1, None),
            ("succeeds", RunState::Succeeded, 1, None),
        ]);
        for run in &runs {
            assert!(run.host.as_ref().is_some_and(|host| !host.is_empty()), "{run:?}");
            assert!(run.started.unwrap() > SystemTime::UNIX_EPOCH, "{run:?}");
            let has_ended = matches!(run.state, RunState::Succeeded | RunState::Failed);
            assert_eq!(run.ended.is_some(), has_ended, "{run:?}");
            assert!(run.ended.is_none_or(|ended| ended >= run.started.unwrap()), "{run:?}");
        }
        let [running_run, succeeded] = [&runs[4], &runs[5]];
        assert_eq!((succeeded.token, running_run.token), (token, running.token()));
        assert_eq!(running_run.owner, running.guard().owner());
        // The latest attempt counts.
        running.finish(0).unwrap();
        drop(succeed(&job(&client), "fails").unwrap());
        let state = |slot: &str| job(&client).runs().unwrap().into_iter().find(|run| run.slot == slot);
        assert_eq!(state("running").unwrap().exit_code, Some(0));
        let last = state("fails").unwrap();
        assert_eq!((last.state, last.attempts), (RunState::Succeeded, 3));
        assert!(matches!(dies.finish(0), Err(Error::Lost { .. })));
        assert_eq!(state("dies").unwrap().state, RunState::Died);
    }

    fn the_last_hundred_slots_are_listed_the_latest_first(setup: &TestStore) {
        let client = setup.client();
        let slots: Vec<String> = (0..103).map(|slot| format!("{slot:03}")).collect();
        for slot in &slots {
            drop(succeed(&job(&client), slot).unwrap());
        }
        // A slot that is too long runs, and is not listed.
        drop(succeed(&job(&client), &"x".repeat(1025)).unwrap());
        let listed: Vec<String> =
            job(&client).runs().unwrap().into_iter().map(|run: RunRecord| run.slot).collect();
        let latest: Vec<String> = slots.into_iter().skip(3).rev().collect();
        assert_eq!(listed, latest);
        // What has expired is not listed either.
        setup.delete("wheellock_job_record:{report}:050");
        assert_eq!(job(&client).runs().unwrap().len(), 99);
    }

    fn begun_run_belongs_to_no_thread_and_ends_by_finish_or_drop(setup: &TestStore) {
        let [client, other] = [setup.client(), setup.client()];
        let RunStart::Begun(run) = job(&client).begin("noon", Wait::none()).unwrap() else { panic!() };
        assert!(run.is_held() && run.check().is_ok());
        // A thread does not run its own slot.
        for client in [&client, &other] {
            assert!(matches!(never(&job(client), "noon"), Ok(RunOutcome::RunningElsewhere)));
        }
        thread::scope(|scope| {
            let ends = thread::Builder::new().name("ends".to_owned());
            ends.spawn_scoped(scope, move || run.finish(0)).unwrap().join().unwrap().unwrap();
        });
        let again = job(&client).begin("noon", Wait::none()).unwrap();
        assert!(matches!(again, RunStart::RanAlready), "{again:?}");
        // Dropped, it has failed, and may be taken over at once.
        drop(job(&client).begin("midnight", Wait::none()).unwrap());
        common::settle(&client);
        let RunStart::Begun(run) = job(&other).begin("midnight", Wait::none()).unwrap() else { panic!() };
        assert_eq!(run.attempt(), 2);
        drop(run.finish(1));
        drop(job(&other).with_max_attempts(3).begin("midnight", Wait::none()).unwrap());
        common::settle(&other);
        let used_up = job(&client).begin("midnight", Wait::none()).unwrap();
        assert!(matches!(used_up, RunStart::AttemptsUsedUp), "{used_up:?}");
    }

    fn what_cannot_be_a_slot_or_a_time_is_an_error_and_runs_nothing(setup: &TestStore) {
        let client = setup.client();
        assert!(matches!(never(&job(&client), ""), Err(Error::InvalidName { .. })));
        assert!(matches!(never(&client.job(""), "noon"), Err(Error::InvalidName { .. })));
        let short = job(&client).with_retention(Duration::ZERO);
        assert!(matches!(never(&short, "noon"), Err(Error::InvalidLease { .. })));
        setup.put_text(KEYS[1]);
        assert!(matches!(never(&job(&client), "noon"), Err(Error::WrongType { .. })));
    }
}

#[test]
fn slot_is_forgotten_after_retention_and_tokens_still_increase() {
    let setup = InMemory::new();
    let job = job(&setup.client());
    let RunOutcome::Ran(token) = succeed(&job, "noon").unwrap() else { panic!() };
    setup.clock.advance(HOUR / 3600 * 3599);
    assert!(matches!(never(&job, "noon"), Ok(RunOutcome::RanAlready)));
    setup.clock.advance(HOUR / 3600);
    let RunOutcome::Ran(later) = succeed(&job, "noon").unwrap() else { panic!() };
    assert!(later > token);
}

#[test]
fn run_is_renewed_and_a_long_pause_is_reported_as_lost() {
    let setup = InMemory::new();
    let job = job(&setup.client());
    let outcome = job.run_once("noon", |run| {
        setup.clock.advance(HOUR * 2);
        assert!(run.is_held());
        setup.clock.jump(Duration::from_secs(31));
        assert!(!run.is_held());
        Err::<(), _>(run.check().unwrap_err())
    });
    let Ok(RunOutcome::Failed(Error::Lost { reason, .. })) = outcome else { panic!("{outcome:?}") };
    assert_eq!(reason, LostReason::Paused);
    // The record of the attempt has expired meanwhile.
    assert!(matches!(succeed(&job, "noon"), Ok(RunOutcome::Ran(_))));
}

fn is_begin(request: &Request) -> bool {
    request.contains(KEYS[1]) && request.contains(KEYS[2])
}

/// A server that knows the script of a begin, so that the first request runs it.
fn world_of_begins() -> common::ProxiedServer {
    let setup = common::ProxiedServer::new();
    let begin = common::code(include_str!("../../src/ops/scripts/run_begin.lua"));
    assert!(!setup.server.command(&["SCRIPT", "LOAD", &begin]).is_error());
    setup
}

fn is_give_back(request: &Request) -> bool {
    request.contains(KEYS[1]) && request.name() == "EVALSHA" && !request.contains(KEYS[0])
}

#[test]
fn an_attempt_whose_begin_got_no_reply_is_given_back() {
    let setup = world_of_begins();
    let (client, other) = (setup.client(), setup.rival());
    let aim = setup.proxy.on(is_begin, Fault::SwallowReply).always();
    let outcome = never(&job(&client).with_max_attempts(1), "noon");
    assert!(outcome.as_ref().is_err_and(Error::is_outcome_unknown), "{outcome:?}");
    aim.withdraw();
    common::settle(&client);
    let outcome = job(&other).with_max_attempts(1).run_once("noon", |run| {
        assert_eq!(run.attempt(), 1);
        Ok::<_, ()>(())
    });
    assert!(matches!(outcome, Ok(RunOutcome::Ran(()))), "{outcome:?}");
}

#[test]
fn an_attempt_is_given_back_although_another_has_begun_since() {
    let setup = world_of_begins();
    let (client, other) = (setup.client(), setup.rival());
    let begin = setup.proxy.on(is_begin, Fault::SwallowReply).always();
    let give_back = setup.proxy.on(is_give_back, Fault::HoldRequest);
    let outcome = never(&job(&client), "noon");
    assert!(outcome.as_ref().is_err_and(Error::is_outcome_unknown), "{outcome:?}");
    give_back.wait_for_hit(SOON);
    begin.withdraw();
    // As its lease would.
    setup.server.command(&["DEL", KEYS[0]]);
    assert!(matches!(fail(&job(&other), "noon"), Ok(RunOutcome::Failed(_))));
    let attempts = || setup.server.command(&["HGET", KEYS[1], "attempts"]).text();
    assert_eq!(attempts(), "2");
    give_back.deliver();
    common::settle(&client);
    assert_eq!(attempts(), "1");
}
