//! The server of the model of a lock: the operations' own effect in memory.

use std::time::Duration;

use crate::error::LostReason;
use crate::model::kind::{Kind, Layout};
use crate::model::owner::Owner;
use crate::ops::by_kind::{HoldId, force_release};
use crate::ops::keyspace::Keyspace;
use crate::ops::operation::WRITE;
use crate::ops::read_write::{level, levels};
use crate::ops::request::RequestId;
use crate::ops::value::{ServerTime, Value};
use crate::ops::{Acquired, Operation, Renew, Renewal, Renewed, SetCountReply};
use crate::testing::checked::checked_lock::{CheckedLock, OwnerSet, Ran};
use crate::testing::checked::mutation::Mutation;
use crate::testing::checked::server::{Keys, once};
use crate::testing::checked::state::{CLIENTS, Command, HOLDS, Reply, Verb};

impl CheckedLock {
    /// What a command does that reaches the server.
    pub(crate) fn run(&self, keys: Keys, command: Command, now: u8) -> Ran {
        once(&self.runs, (keys, command, now), || {
            let time = self.server_time(now);
            let mut keyspace = self.keyspaces.at(keys, time);
            let before = keyspace.clone();
            let reply = self.execute(&mut keyspace, command);
            let id = self.id(command.client, command.hold);
            let owner = id.owner.to_string();
            let is_shared = matches!(id.kind.layout(), Layout::Reader | Layout::Writer);
            let others = |keyspace: &mut Keyspace| {
                let mut fields = keyspace.fields(self.name.as_str());
                fields.retain(|(field, _)| *field != owner);
                let has_others = !fields.is_empty();
                let left = has_others.then(|| keyspace.time_to_live(self.name.as_str()));
                (fields, left)
            };
            let forced = matches!(command.verb, Verb::ForceRelease(_));
            // Readers share a key, and each removes others that have expired.
            let touched_other_owner = !forced
                && !is_shared
                && others(&mut before.clone()) != others(&mut keyspace.clone());
            Ran { keys: self.keyspaces.intern(&keyspace, time), reply, touched_other_owner }
        })
    }

    fn execute(&self, keyspace: &mut Keyspace, command: Command) -> Reply {
        let id = self.id(command.client, command.hold);
        let anytime = self.runs_anytime(command.verb);
        let not_after = ServerTime(if anytime { i64::MAX } else { command.not_after });
        match command.verb {
            Verb::Acquire { under } => self.acquire(keyspace, &id, under, not_after),
            Verb::Renew => {
                let renewal =
                    Renewal { name: id.name.clone(), owner: id.owner.clone(), lease: self.lease };
                let renew = Renew::new(id.kind.layout(), vec![renewal]);
                let value = renew.run(keyspace, not_after);
                if value.as_late().is_some() {
                    return Reply::Late;
                }
                let renewed = renew.decode(value).unwrap().answers[0];
                if renewed == Renewed::Deleted && self.lacks(Mutation::RenewalsCreate) {
                    self.set_count(keyspace, &id.owner, 1);
                    keyspace.expire(self.name.as_str(), self.lease.millis_i64());
                    return Reply::Renewed;
                }
                match renewed.loss() {
                    None => Reply::Renewed,
                    Some(reason) => Reply::Lost { taken_over: reason == LostReason::TakenOver },
                }
            }
            Verb::SetCount { count, nested } => {
                let set = id.set_count(count.into(), nested.then_some(self.nested_lease));
                let value = set.run(keyspace, not_after);
                if value.as_late().is_some() {
                    return Reply::Late;
                }
                let lease = self.nested_lease.millis_i64();
                match set.decode(value).unwrap() {
                    SetCountReply::Written => {
                        if nested && self.lacks(Mutation::LeasesShortened) {
                            keyspace.expire(self.name.as_str(), lease);
                        }
                        Reply::Counted
                    }
                    SetCountReply::Gone if self.lacks(Mutation::CountsCreate) => {
                        self.set_count(keyspace, &id.owner, count.into());
                        keyspace.expire(self.name.as_str(), lease);
                        Reply::Counted
                    }
                    SetCountReply::Gone => Reply::Lost { taken_over: false },
                }
            }
            Verb::Release => self.release_on_server(keyspace, &id, not_after),
            Verb::ForceRelease(copy) => {
                let copy = if self.lacks(Mutation::RepliesForgotten) { copy } else { 0 };
                let owner = self.owners[CLIENTS][usize::from(copy)].clone();
                let request = RequestId::of("request".into(), owner, Duration::from_secs(60));
                let force = force_release(id.kind, self.name.clone(), request);
                match force.run(keyspace, not_after) {
                    Value::Integer(ended) => Reply::Forced(ended == 1),
                    _ => Reply::Late,
                }
            }
        }
    }

    fn acquire(
        &self,
        keyspace: &mut Keyspace,
        id: &HoldId,
        under: Option<u8>,
        not_after: ServerTime,
    ) -> Reply {
        let count = self.count_of(keyspace, &id.owner);
        let tokens = self.name.token();
        let last_token = keyspace.number(&tokens).unwrap();
        let writer = under.map(|hold| self.owner(0, hold));
        let acquire = id.acquire(self.lease, id.kind == Kind::Fair, writer.as_ref());
        let value = acquire.run(keyspace, not_after);
        if value.as_late().is_some() {
            return Reply::Late;
        }
        let acquired = acquire.decode(value).unwrap();
        if self.lacks(Mutation::RelativeCounts) && acquired.is_granted() {
            self.set_count(keyspace, &id.owner, count + 1);
        }
        match acquired {
            Acquired::Granted => Reply::Granted(0),
            Acquired::Fenced(_) if count == 0 && self.lacks(Mutation::TokensWithoutClock) => {
                let token = last_token.unwrap_or(0) + 1;
                keyspace.text_set(&tokens, token);
                Reply::Granted(token.unsigned_abs())
            }
            Acquired::Fenced(token) => Reply::Granted(token),
            Acquired::Busy(_) | Acquired::HeldBy(..) => Reply::Busy,
        }
    }

    fn release_on_server(
        &self,
        keyspace: &mut Keyspace,
        id: &HoldId,
        not_after: ServerTime,
    ) -> Reply {
        let (key, field) = (self.name.as_str(), id.owner.to_string());
        let count = self.count_of(keyspace, &id.owner);
        if self.lacks(Mutation::RelativeCounts) && count > 1 {
            self.set_count(keyspace, &id.owner, count - 1);
            return Reply::Released(keyspace.now());
        }
        if self.lacks(Mutation::AnyOwnerReleased) {
            keyspace.delete(key);
        }
        let before = self.lacks(Mutation::DeadReadersCount).then(|| keyspace.clone());
        let release = id.release();
        let value = release.run(keyspace, not_after);
        if let Some(mut before) = before.filter(|_| !keyspace.exists(key)) {
            // Beside the mode and the own field.
            if before.fields(key).len() > 2 {
                before.hash_delete(key, &field).unwrap();
                *keyspace = before;
            }
        }
        Reply::Released(release.decode(value).unwrap().at)
    }

    fn count_of(&self, keyspace: &mut Keyspace, owner: &Owner) -> i64 {
        let count = keyspace.hash_get(self.name.as_str(), &owner.to_string()).unwrap();
        count.map_or(0, |count| count.parse().unwrap())
    }

    fn set_count(&self, keyspace: &mut Keyspace, owner: &Owner, count: i64) {
        keyspace.hash_set(self.name.as_str(), &owner.to_string(), count).unwrap();
    }

    /// Whose holds the server has.
    pub(crate) fn held(&self, keys: Keys, now: u8) -> OwnerSet {
        once(&self.held, (keys, now), || {
            let mut keyspace = self.keyspaces.at(keys, self.server_time(now));
            let fields = keyspace.fields(self.name.as_str());
            let mut set = 0;
            for (client, owners) in (0..).zip(&self.owners) {
                let is_reader = usize::from(client) < CLIENTS && self.kind(client) == Kind::Read;
                for (hold, owner) in (0..).zip(owners) {
                    let changed = self.lacks(Mutation::ReadsWithWritersOwner);
                    let owner = if changed { self.owner(client, hold) } else { owner.clone() };
                    let owner = owner.to_string();
                    let is_held = fields.iter().any(|(field, count)| {
                        // A dead reader's field stays while others read, and keeps no writer out.
                        let level = |number| level(&self.name, field, number);
                        let mut numbers = 1..=levels(count);
                        let lives = !is_reader || numbers.any(|one| keyspace.exists(&level(one)));
                        field.strip_suffix(WRITE).unwrap_or(field) == owner && lives
                    });
                    set |= u32::from(is_held) << (client * HOLDS + hold);
                }
            }
            set
        })
    }

    /// Whether the server ignores a command's not-after.
    pub(crate) fn runs_anytime(&self, verb: Verb) -> bool {
        let own = match verb {
            Verb::Renew => self.lacks(Mutation::NoNotAfterOfRenewals),
            Verb::SetCount { .. } => self.lacks(Mutation::NoNotAfterOfCounts),
            _ => false,
        };
        own || self.lacks(Mutation::NoNotAfter)
    }

    /// The same keyspace without what has expired.
    pub(crate) fn expired(&self, keys: Keys, now: u8) -> Keys {
        once(&self.ticks, (keys, now), || {
            let time = self.server_time(now);
            self.keyspaces.intern(&self.keyspaces.at(keys, time), time)
        })
    }

    /// Whether the server has nothing of the lock.
    pub(crate) fn has_nothing(&self, keys: Keys, now: u8) -> bool {
        self.keyspaces.is_empty(keys, self.server_time(now))
    }

    /// The same keyspace with the clients in another order.
    pub(crate) fn keys_mirrored(&self, keys: Keys, mirror: usize) -> Keys {
        once(&self.mirrored, (keys, mirror), || {
            let ids: Vec<String> = self.owners.iter().map(|owners| client_of(&owners[0])).collect();
            self.keyspaces.renamed(keys, |text| {
                let own = (0..CLIENTS).find(|client| text.contains(&ids[*client]));
                own.map_or_else(
                    || text.to_owned(),
                    |own| text.replace(&ids[own], &ids[usize::from(self.mirrors[mirror][own])]),
                )
            })
        })
    }
}

/// The client in the text of an owner.
fn client_of(owner: &Owner) -> String {
    owner.to_string().split_once(':').map(|(client, _)| client.to_owned()).unwrap()
}
