//! Permits with ids and leases: acquire and release.

use std::sync::Arc;
use std::time::Duration;

use crate::model::lease::Lease;
use crate::model::name::LockName;
use crate::model::owner::Owner;
use crate::model::permit_id::PermitId;
use crate::ops::keyspace::{Keyspace, WrongType};
use crate::ops::operation::{Argument, Grants, Operation, Request, Script, script};
use crate::ops::release::{Released, with_time};
use crate::ops::semaphore::tell;
use crate::ops::value::{FromReply, Unexpected, Value};

/// Takes permits with ids.
static ACQUIRE: Script = script!("permits_acquire");
/// Releases permits by their ids.
static RELEASE: Script = script!("permits_release");

/// Redisson's score for an endless lease.
pub(crate) const NEVER: i64 = 922_337_203_685_477;

/// The permits of an operation, with the keys of their semaphore.
#[derive(Clone, Debug)]
struct Permits {
    name: LockName,
    leases: Arc<str>,
    channel: Arc<str>,
    ids: Vec<PermitId>,
    /// The keys recording each permit's release.
    request_keys: Vec<Arc<str>>,
}

impl Permits {
    fn new(name: LockName, ids: Vec<PermitId>) -> Self {
        let request_keys = ids.iter().map(|id| name.request(id)).collect();
        Self {
            leases: name.permit_leases(),
            channel: name.semaphore_channel(),
            name,
            ids,
            request_keys,
        }
    }

    /// Returns the keys in the order of the scripts.
    fn keys(&self) -> Vec<&str> {
        let mut keys = vec![self.name.as_str(), &*self.leases, &*self.channel];
        keys.extend(self.request_keys.iter().map(|key| &**key));
        keys
    }

    /// Returns `arguments` followed by the ids of the permits.
    fn with_ids<'a>(&'a self, mut arguments: Vec<Argument<'a>>) -> Vec<Argument<'a>> {
        arguments.extend(self.ids.iter().map(|id| Argument::Bytes(id.as_bytes())));
        arguments
    }
}

/// Takes permits, if there are enough.
#[derive(Clone, Debug)]
pub(crate) struct AcquirePermits {
    permits: Permits,
    /// `None` for permits without an expiry.
    lease: Option<Lease>,
}

/// The reply to an acquire of permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PermitsAcquired {
    pub(crate) granted: bool,
    /// The number of permits left.
    pub(crate) left: i64,
    /// The time until the next lease ends, if the permits were refused and a lease ends at all.
    pub(crate) wait: Option<Duration>,
}

impl FromReply for PermitsAcquired {
    fn from_reply(value: Value) -> Result<Self, Unexpected> {
        match value.as_integers() {
            Some([granted @ (0 | 1), left, wait]) => {
                let wait = u64::try_from(wait).ok().map(Duration::from_millis);
                Ok(Self { granted: granted == 1, left, wait })
            }
            _ => Err(Unexpected(value)),
        }
    }
}

impl AcquirePermits {
    pub(crate) fn new(name: LockName, ids: Vec<PermitId>, lease: Option<Lease>) -> Self {
        Self { permits: Permits::new(name, ids), lease }
    }

    /// Takes the permits in memory if enough are free, after freeing permits whose leases have
    /// ended. A copy of an earlier request takes nothing again. Returns the numbers of the reply: 1
    /// if granted or else 0, the permits left, and the milliseconds to wait or -1.
    fn acquire(&self, keyspace: &mut Keyspace) -> Result<[i64; 3], WrongType> {
        let Permits { name, leases, channel, ids, request_keys } = &self.permits;
        let (key, now) = (name.as_str(), keyspace.now().0);
        let value = keyspace.number(key)?;
        let mut left = value.unwrap_or(0);
        let ends = self.lease.map_or(NEVER, |lease| now.saturating_add(lease.millis_i64()));
        let (mut held, mut copy) = (false, false);
        for (id, request_key) in ids.iter().zip(request_keys) {
            if let Some(score) = keyspace.sorted_set_score(leases, id.as_bytes())? {
                keyspace.sorted_set(leases, id.as_bytes(), score.max(ends))?;
                (held, copy) = (true, true);
            } else if keyspace.exists(request_key) {
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

    fn request(&self) -> Request<'_> {
        Request::script(
            "acquire",
            &ACQUIRE,
            self.permits.keys(),
            self.permits.with_ids(vec![
                Argument::NotAfter,
                lease_argument(self.lease),
                Argument::Publish,
            ]),
        )
    }

    fn grants(&self) -> Grants {
        Grants::If(|value| {
            PermitsAcquired::from_reply(value.clone()).is_ok_and(|reply| reply.granted)
        })
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        Ok(Value::Array(self.acquire(keyspace)?.map(Value::Integer).to_vec()))
    }
}

/// Releases permits by their ids: all permits, or none if any is missing.
#[derive(Clone, Debug)]
pub(crate) struct ReleasePermits {
    permits: Permits,
    request: Owner,
    dedup_ttl: i64,
}

impl ReleasePermits {
    /// Makes the request. The server remembers the release for `dedup_ttl`, for copies of the call
    /// `request` and of the acquire. Zero if no such copy can be on its way.
    pub(crate) fn new(
        name: LockName,
        ids: Vec<PermitId>,
        request: Owner,
        dedup_ttl: Duration,
    ) -> Self {
        let dedup_ttl = i64::try_from(dedup_ttl.as_millis()).unwrap_or(i64::MAX);
        Self { permits: Permits::new(name, ids), request, dedup_ttl }
    }

    /// Frees the permits in memory, and wakes waiters. Returns 1; 2 if the lease of some permit had
    /// ended before; or 0, without a freed permit, if any is missing. A copy gets the remembered
    /// answer.
    fn release(&self, keyspace: &mut Keyspace) -> Result<i64, WrongType> {
        let Permits { name, leases, channel, ids, request_keys } = &self.permits;
        let (key, now) = (name.as_str(), keyspace.now().0);
        if let Some(first) = request_keys.first()
            && let Some(known) = keyspace.text_get(first)?
            && let Some((request, answer)) = known.split_once(' ')
            && *request == self.request.to_string()
        {
            return answer.parse().map_err(|_| WrongType::of(first));
        }
        let value = keyspace.number(key)?;
        let mut answer = 1;
        for id in ids {
            match keyspace.sorted_set_score(leases, id.as_bytes())? {
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
        for request_key in request_keys.iter().filter(|_| self.dedup_ttl > 0) {
            if answer > 0 || !keyspace.exists(request_key) {
                let text = format!("{} {answer}", self.request);
                keyspace.text_set_for(request_key, text, self.dedup_ttl);
            }
        }
        Ok(answer)
    }
}

impl Operation for ReleasePermits {
    type Reply = Released;

    fn request(&self) -> Request<'_> {
        Request::script(
            "release",
            &RELEASE,
            self.permits.keys(),
            self.permits.with_ids(vec![
                Argument::Number(self.dedup_ttl),
                Argument::Publish,
                Argument::Owner(&self.request),
            ]),
        )
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let answer = self.release(keyspace)?;
        Ok(with_time(answer, keyspace))
    }
}

/// Prolongs the lease of a permit in memory, as a renewal does. Returns 1; 0 if the permit is not
/// taken; or -1 if the key has another type.
pub(crate) fn renew_permit(
    keyspace: &mut Keyspace,
    name: &LockName,
    owner: &Owner,
    millis: i64,
) -> i64 {
    let (leases, id, now) = (name.permit_leases(), owner.bytes(), keyspace.now().0);
    match keyspace.sorted_set_score(&leases, &id) {
        Ok(Some(score)) if score > now => {
            let ends = score.max(now.saturating_add(millis));
            keyspace.sorted_set(&leases, &id, ends).map_or(-1, |()| 1)
        }
        Ok(_) => 0,
        Err(WrongType(_)) => -1,
    }
}

/// Returns a lease in milliseconds as an argument, or -1 for an endless lease.
pub(crate) fn lease_argument(lease: Option<Lease>) -> Argument<'static> {
    Argument::Number(lease.map_or(-1, Lease::millis_i64))
}
