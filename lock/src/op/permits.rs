//! Permits with ids and leases: take them, and give them back.

use std::sync::Arc;
use std::time::Duration;

use super::operation::{Argument, Form, Operation, Script};
use super::release::{Found, Released};
use super::semaphore::tell;
use crate::keyspace::{Keyspace, WrongType};
use crate::lease::Lease;
use crate::name::LockName;
use crate::owner::Owner;
use crate::permit_id::PermitId;
use crate::value::{ServerTime, Unexpected, Value};

static ACQUIRE: Script = Script::new(include_str!("permits_acquire.lua"));
static RELEASE: Script = Script::new(include_str!("permits_release.lua"));

/// Redisson's end of a lease that never ends.
pub(super) const NEVER: i64 = 922_337_203_685_477;

/// The permits that an operation is about, with the keys that this needs.
#[derive(Clone, Debug)]
struct Permits {
    name: LockName,
    leases: Arc<str>,
    channel: Arc<str>,
    ids: Vec<PermitId>,
    /// Where it is remembered of each that it was given back.
    remembered: Vec<Arc<str>>,
}

impl Permits {
    fn new(name: LockName, ids: Vec<PermitId>) -> Self {
        let remembered = ids.iter().map(|id| name.request(id)).collect();
        Self {
            leases: name.permit_leases(),
            channel: name.semaphore_channel(),
            name,
            ids,
            remembered,
        }
    }

    fn keys(&self) -> Vec<&str> {
        let mut keys = vec![self.name.as_str(), &*self.leases, &*self.channel];
        keys.extend(self.remembered.iter().map(|key| &**key));
        keys
    }

    fn with_ids<'a>(&'a self, mut arguments: Vec<Argument<'a>>) -> Vec<Argument<'a>> {
        arguments.extend(self.ids.iter().map(|id| Argument::Bytes(id.as_bytes())));
        arguments
    }
}

/// Takes permits, if there are enough.
#[derive(Clone, Debug)]
pub(crate) struct AcquirePermits {
    permits: Permits,
    /// None for permits that do not end by themselves.
    lease: Option<Lease>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PermitsAcquired {
    pub(crate) granted: bool,
    /// How many are left for others.
    pub(crate) left: i64,
    /// When the next lease ends, if it was refused and one does.
    pub(crate) wait: Option<Duration>,
}

impl AcquirePermits {
    pub(crate) fn new(name: LockName, ids: Vec<PermitId>, lease: Option<Lease>) -> Self {
        Self { permits: Permits::new(name, ids), lease }
    }

    fn acquire(&self, keyspace: &mut Keyspace) -> Result<[i64; 3], WrongType> {
        let Permits { name, leases, channel, ids, remembered } = &self.permits;
        let (key, now) = (name.as_str(), keyspace.now().0);
        let value = keyspace.number(key)?;
        let mut left = value.unwrap_or(0);
        let ends = self.lease.map_or(NEVER, |lease| now.saturating_add(lease.in_millis()));
        let (mut held, mut copy) = (false, false);
        for (id, remembered) in ids.iter().zip(remembered) {
            if let Some(score) = keyspace.sorted_score(leases, id.as_bytes())? {
                keyspace.sorted_set(leases, id.as_bytes(), score.max(ends))?;
                (held, copy) = (true, true);
            } else if keyspace.exists(remembered) {
                copy = true;
            }
        }
        if copy {
            return Ok([i64::from(held), left, -1]);
        }
        let freed = keyspace.sorted_remove_until(leases, now)?;
        if freed > 0 && value.is_some() {
            left = keyspace.number_add(key, freed)?;
        }
        let wanted = i64::try_from(ids.len()).unwrap_or(i64::MAX);
        let granted = value.is_some() && left >= wanted;
        let mut wait = -1;
        if granted {
            left = keyspace.number_add(key, -wanted)?;
            for id in ids {
                keyspace.sorted_set(leases, id.as_bytes(), ends)?;
            }
            let lives = keyspace.time_to_live(key);
            if lives > 0 {
                keyspace.expire(leases, lives);
            }
        } else if let Some((_, first)) =
            keyspace.sorted(leases)?.first().filter(|(_, first)| *first != NEVER)
        {
            wait = first - now;
        }
        if freed > 0 {
            tell(keyspace, channel, left);
        }
        Ok([i64::from(granted), left, wait])
    }
}

impl Operation for AcquirePermits {
    type Reply = PermitsAcquired;

    fn name(&self) -> &'static str {
        "acquire"
    }

    fn form(&self) -> Form {
        Form::Script(&ACQUIRE)
    }

    fn keys(&self) -> Vec<&str> {
        self.permits.keys()
    }

    fn arguments(&self, not_after: ServerTime) -> Vec<Argument<'_>> {
        self.permits.with_ids(vec![
            Argument::Number(not_after.0),
            lease_argument(self.lease),
            Argument::Publish,
        ])
    }

    fn decode(&self, value: Value) -> Result<PermitsAcquired, Unexpected> {
        match value {
            Value::Array(parts) => match parts.as_slice() {
                [Value::Integer(granted @ (0 | 1)), Value::Integer(left), Value::Integer(wait)] => {
                    let wait = u64::try_from(*wait).ok().map(Duration::from_millis);
                    Ok(PermitsAcquired { granted: *granted == 1, left: *left, wait })
                }
                _ => Err(Unexpected(Value::Array(parts))),
            },
            other => Err(Unexpected(other)),
        }
    }

    fn apply(&self, keyspace: &mut Keyspace, not_after: ServerTime) -> Value {
        keyspace.late(not_after).unwrap_or_else(|| match self.acquire(keyspace) {
            Ok(answer) => Value::Array(answer.map(Value::Integer).to_vec()),
            Err(WrongType) => Value::wrong_type(),
        })
    }

    fn may_grant(&self) -> bool {
        true
    }

    fn grants(&self, value: &Value) -> bool {
        self.decode(value.clone()).is_ok_and(|answer| answer.granted)
    }
}

/// Gives permits back by their ids: all of them, or none if one is not there.
#[derive(Clone, Debug)]
pub(crate) struct ReleasePermits {
    permits: Permits,
    request: Owner,
    remembered: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PermitsReleased {
    pub(crate) found: PermitsFound,
    /// When the server looked.
    pub(crate) at: ServerTime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PermitsFound {
    /// All of them. They are given back.
    All,
    /// All of them, but the lease of one had ended before. They are given back.
    Late,
    /// One was not there, and none was given back.
    Missing,
}

impl ReleasePermits {
    /// The server remembers for `remembered` that they were given back, for copies of the call `request` and of the
    /// acquire. Zero if neither can be on its way.
    pub(crate) fn new(
        name: LockName,
        ids: Vec<PermitId>,
        request: Owner,
        remembered: Duration,
    ) -> Self {
        let remembered = i64::try_from(remembered.as_millis()).unwrap_or(i64::MAX);
        Self { permits: Permits::new(name, ids), request, remembered }
    }

    /// What this call is known as.
    pub(crate) fn request(&self) -> &Owner {
        &self.request
    }

    fn release(&self, keyspace: &mut Keyspace) -> Result<i64, WrongType> {
        let Permits { name, leases, channel, ids, remembered } = &self.permits;
        let (key, now) = (name.as_str(), keyspace.now().0);
        if let Some(first) = remembered.first()
            && let Some(known) = keyspace.text_get(first)?
            && let Some((request, answer)) = known.split_once(' ')
            && *request == self.request.to_string()
        {
            return answer.parse().map_err(|_| WrongType);
        }
        let value = keyspace.number(key)?;
        let mut answer = 1;
        for id in ids {
            match keyspace.sorted_score(leases, id.as_bytes())? {
                None => {
                    answer = 0;
                    break;
                }
                Some(score) if score <= now => answer = 2,
                Some(_) => {}
            }
        }
        if answer > 0 {
            let mut removed = 0;
            for id in ids {
                removed += i64::from(keyspace.sorted_remove(leases, id.as_bytes())?);
            }
            if value.is_some() {
                let left = keyspace.number_add(key, removed)?;
                tell(keyspace, channel, left);
            }
        }
        for remembered in remembered.iter().filter(|_| self.remembered > 0) {
            if answer > 0 || !keyspace.exists(remembered) {
                let text = format!("{} {answer}", self.request);
                keyspace.text_set_for(remembered, text, self.remembered);
            }
        }
        Ok(answer)
    }
}

impl Operation for ReleasePermits {
    type Reply = PermitsReleased;

    fn name(&self) -> &'static str {
        "release"
    }

    fn form(&self) -> Form {
        Form::Script(&RELEASE)
    }

    fn keys(&self) -> Vec<&str> {
        self.permits.keys()
    }

    fn arguments(&self, _not_after: ServerTime) -> Vec<Argument<'_>> {
        self.permits.with_ids(vec![
            Argument::Number(self.remembered),
            Argument::Publish,
            Argument::Owner(&self.request),
        ])
    }

    fn decode(&self, value: Value) -> Result<PermitsReleased, Unexpected> {
        match value {
            Value::Array(parts) => {
                let (found, at) = match parts.as_slice() {
                    [Value::Integer(1), Value::Integer(now)] => (PermitsFound::All, *now),
                    [Value::Integer(2), Value::Integer(now)] => (PermitsFound::Late, *now),
                    [Value::Integer(0), Value::Integer(now)] => (PermitsFound::Missing, *now),
                    _ => return Err(Unexpected(Value::Array(parts))),
                };
                Ok(PermitsReleased { found, at: ServerTime(at) })
            }
            other => Err(Unexpected(other)),
        }
    }

    fn apply(&self, keyspace: &mut Keyspace, _not_after: ServerTime) -> Value {
        match self.release(keyspace) {
            Ok(answer) => {
                Value::Array(vec![Value::Integer(answer), Value::Integer(keyspace.now().0)])
            }
            Err(WrongType) => Value::wrong_type(),
        }
    }
}

/// Prolongs the lease of one permit, as a renewal does. The number that the script answers.
pub(super) fn renew_permit(
    keyspace: &mut Keyspace,
    name: &LockName,
    owner: &Owner,
    millis: i64,
) -> i64 {
    let (leases, id, now) = (name.permit_leases(), owner.bytes(), keyspace.now().0);
    match keyspace.sorted_score(&leases, &id) {
        Ok(Some(score)) if score > now => {
            let ends = score.max(now.saturating_add(millis));
            keyspace.sorted_set(&leases, &id, ends).map_or(-1, |()| 1)
        }
        Ok(_) => 0,
        Err(WrongType) => -1,
    }
}

/// A release of permits that nobody waits for: that it was answered is all that matters.
#[derive(Clone, Debug)]
pub(crate) struct OwedPermits(pub(crate) ReleasePermits);

impl Operation for OwedPermits {
    type Reply = Released;

    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn form(&self) -> Form {
        self.0.form()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys()
    }

    fn arguments(&self, not_after: ServerTime) -> Vec<Argument<'_>> {
        self.0.arguments(not_after)
    }

    fn decode(&self, value: Value) -> Result<Released, Unexpected> {
        let PermitsReleased { found, at } = self.0.decode(value)?;
        let found = match found {
            PermitsFound::All | PermitsFound::Late => Found::Own,
            PermitsFound::Missing => Found::Nothing,
        };
        Ok(Released { found, at })
    }

    fn apply(&self, keyspace: &mut Keyspace, not_after: ServerTime) -> Value {
        self.0.apply(keyspace, not_after)
    }
}

pub(super) fn lease_argument(lease: Option<Lease>) -> Argument<'static> {
    Argument::Number(lease.map_or(-1, Lease::in_millis))
}
