//! Histories of semaphores whose permits have ids and leases.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use wheellock_fixture::Server;

use crate::model::kind::Layout;
use crate::model::lease::Lease;
use crate::model::name::LockName;
use crate::model::owner::{ClientId, Owner};
use crate::model::permit_id::PermitId;
use crate::ops::fenced::DrawToken;
use crate::ops::permit_admin::{CountPermits, LeaseOf, SetPermits, UpdateLease};
use crate::ops::permits::{AcquirePermits, ReleasePermits};
use crate::ops::renew::{Renew, Renewal};
use crate::ops::semaphore::{AddPermits, TrySetPermits};
use crate::testing::differential::server_and_model::{
    Call, STEP, Sequences, ServerAndModel, call, run_histories,
};

/// Few ids and requests, so that histories meet and requests are sent again.
const NAME: &str = "{b}c";
const LEASES: &str = "{b}c:timeout";
const IDS: usize = 5;
const REQUESTS: usize = 3;
/// Kinds of calls.
const KINDS: usize = 4;

#[derive(Clone, Debug)]
enum Action {
    Acquire { ids: Vec<usize>, steps: u32, late: bool },
    Release { ids: Vec<usize>, request: usize, dedup_ttl: bool },
    Count,
    Make { permits: u32, steps: u64, call: Call },
    Add { permits: i64, call: Call },
    Set { permits: u32, call: Call, late: bool },
    Update { id: usize, steps: u32, call: Call, late: bool },
    LeaseOf { id: usize },
    DrawToken { id: usize, late: bool },
    Renew { renewals: Vec<(usize, u32)>, late: bool },
    Delete { leases: bool },
    PutText { leases: bool },
    Pass { steps: u32 },
}

fn action() -> impl Strategy<Value = Action> {
    let late = prop::bool::weighted(0.1);
    let ids = prop::collection::vec(0..IDS, 1..4);
    prop_oneof![
        8 => (ids.clone(), 0..5_u32, late)
            .prop_map(|(ids, steps, late)| Action::Acquire { ids, steps, late }),
        6 => (ids, 0..REQUESTS, any::<bool>())
            .prop_map(|(ids, request, dedup_ttl)| Action::Release { ids, request, dedup_ttl }),
        2 => Just(Action::Count),
        4 => (0..6_u32, 0..5_u64, call())
            .prop_map(|(permits, steps, call)| Action::Make { permits, steps, call }),
        1 => (-3..6_i64, call()).prop_map(|(permits, call)| Action::Add { permits, call }),
        2 => (0..6_u32, call(), late)
            .prop_map(|(permits, call, late)| Action::Set { permits, call, late }),
        3 => (0..IDS, 0..5_u32, call(), late)
            .prop_map(|(id, steps, call, late)| Action::Update { id, steps, call, late }),
        2 => (0..IDS).prop_map(|id| Action::LeaseOf { id }),
        2 => (0..IDS, late).prop_map(|(id, late)| Action::DrawToken { id, late }),
        4 => (prop::collection::vec((0..IDS, 1..5_u32), 1..4), late)
            .prop_map(|(renewals, late)| Action::Renew { renewals, late }),
        1 => prop::bool::weighted(0.3).prop_map(|leases| Action::Delete { leases }),
        1 => any::<bool>().prop_map(|leases| Action::PutText { leases }),
        4 => (1..4_u32).prop_map(|steps| Action::Pass { steps }),
    ]
}

struct Actors {
    both: ServerAndModel,
    name: LockName,
    owners: Vec<Owner>,
    /// The permits that are taken under them.
    ids: Vec<PermitId>,
    /// The releases.
    requests: Vec<Owner>,
    sequences: Sequences<KINDS>,
}

impl Actors {
    fn new(server: &Server) -> Self {
        let client = ClientId::random();
        let name = LockName::parse(NAME).unwrap();
        let owners: Vec<Owner> = (0..IDS).map(|_| client.next_owner()).collect();
        let ids: Vec<PermitId> = owners.iter().map(PermitId::of).collect();
        let requests: Vec<Owner> = (0..REQUESTS).map(|_| client.next_owner()).collect();
        let mut keys = vec![NAME.to_owned(), LEASES.to_owned(), name.token().to_string()];
        keys.extend(ids.iter().map(|id| name.request(id).to_string()));
        keys.extend(Sequences::<KINDS>::keys(&name));
        let (both, sequences) = (ServerAndModel::new(server, keys), Sequences::new());
        Self { both, name, owners, ids, requests, sequences }
    }

    fn perform(&mut self, action: &Action) -> Result<(), TestCaseError> {
        let name = self.name.clone();
        let ids = |ids: &[usize]| ids.iter().map(|id| self.ids[*id]).collect::<Vec<_>>();
        let lease = |steps: u32| (steps > 0).then(|| Lease::new(STEP * steps).unwrap());
        // Two and a half steps, so that some copies come after it is forgotten.
        let dedup_ttl = STEP * 5 / 2;
        let kind = match action {
            Action::Add { .. } => 1,
            Action::Set { .. } => 2,
            Action::Update { .. } => 3,
            _ => 0,
        };
        let mut request = |call| self.sequences.request(&name, call, kind);
        match *action {
            Action::Acquire { ids: ref of, steps, late } => {
                let acquire = AcquirePermits::new(name.clone(), ids(of), lease(steps));
                self.both.compare(&acquire, late)
            }
            Action::Release { ids: ref of, request: by, dedup_ttl: remember } => {
                let dedup_ttl = if remember { dedup_ttl } else { Duration::ZERO };
                let by = self.requests[by].clone();
                let release = ReleasePermits::new(name.clone(), ids(of), by, dedup_ttl);
                self.both.compare(&release, false)
            }
            Action::Count => self.both.compare(&CountPermits::new(name), false),
            Action::Make { permits, steps, call } => {
                let lives = steps * u64::try_from(STEP.as_millis()).unwrap();
                let make = TrySetPermits::new(name.clone(), permits, lives, request(call));
                self.both.compare(&make, false)
            }
            Action::Add { permits, call } => {
                let add = AddPermits::new(name.clone(), permits, false, request(call));
                self.both.compare(&add, false)
            }
            Action::Set { permits, call, late } => {
                self.both.compare(&SetPermits::new(name.clone(), permits, request(call)), late)
            }
            Action::Update { id, steps, call, late } => {
                let update = UpdateLease::new(&name, self.ids[id], lease(steps), request(call));
                self.both.compare(&update, late)
            }
            Action::LeaseOf { id } => self.both.compare(&LeaseOf::new(&name, self.ids[id]), false),
            Action::DrawToken { id, late } => {
                let draw = DrawToken::new(Layout::Permit, &name, self.owners[id].clone());
                self.both.compare(&draw, late)
            }
            Action::Renew { ref renewals, late } => {
                let renewals = renewals.iter().map(|&(by, steps)| Renewal {
                    name: name.clone(),
                    owner: self.owners[by].clone(),
                    lease: Lease::new(STEP * steps).unwrap(),
                });
                self.both.compare(&Renew::new(Layout::Permit, renewals.collect()), late)
            }
            Action::Delete { leases } => {
                let key = if leases { LEASES } else { NAME };
                drop(self.both.server.command(&["DEL", key]));
                self.both.keyspace.delete(key);
                Ok(())
            }
            Action::PutText { leases } => {
                let key = if leases { LEASES } else { NAME };
                drop(self.both.server.command(&["SET", key, "data"]));
                self.both.keyspace.text_set(key, "data");
                Ok(())
            }
            Action::Pass { steps } => {
                self.both.pass(STEP * steps);
                Ok(())
            }
        }
    }
}

#[test]
fn permit_operations_in_memory_match_server_scripts() {
    run_histories(512, file!(), action(), |server, history| {
        let mut actors = Actors::new(server);
        for action in history {
            actors.perform(action)?;
        }
        actors.both.same_in_the_end()
    });
}
