//! Redis and Valkey: commands which write only with a current token, in a script.
//!
//! The newest token of a resource has a separate key, [`fence_key`], in the same hash slot as the
//! resource's key. The key of the fence does not expire, and outlives the resource: after a
//! deletion or an eviction of the key, stale holders are no longer refused, so the server needs
//! `noeviction` or one of the policies `volatile-*`. A failover that loses the last writes loses
//! tokens together with the data that they protect. A user of an ACL needs `get`, `set` and `eval`
//! or `evalsha` for the fence.

use std::sync::LazyLock;

use redis::{Arg, Cmd, ConnectionLike, FromRedisValue, RedisError, Script, Value};

use crate::error::{FenceError, Stale, checked};

static WRITE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("fenced_write.lua")));

/// Runs `command` on the server if `token` is not older than the newest token of `resource`, and
/// returns the reply. The token is the newest from then on. One round trip.
///
/// `resource` is the key written by `command`. In a cluster all keys of a command have the same
/// hash slot, so further keys need the same hash tag. A command refused by the server raises no
/// token. Lua keeps 53 bits of a number: a larger number in the reply is rounded.
///
/// ```no_run
/// use redis::cmd;
/// use wheellock_fence::redis::write;
///
/// # fn main() -> Result<(), wheellock_fence::FenceError<redis::RedisError>> {
/// # let token = 7;
/// let mut connection = redis::Client::open("redis://127.0.0.1/")?.get_connection()?;
/// write::<()>(&mut connection, "balance", token, cmd("SET").arg("balance").arg(150))?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// * [`FenceError::Stale`] - a newer holder has written. Nothing was changed. Permanent.
/// * [`FenceError::InvalidToken`] - nothing was sent. Permanent.
/// * [`FenceError::Resource`] - the server's error: the command's, or a fence key with foreign
///   data. Or an error of the connection: the command may have run.
pub fn write<T: FromRedisValue>(
    connection: &mut dyn ConnectionLike,
    resource: &str,
    token: u64,
    command: &Cmd,
) -> Result<T, FenceError<RedisError>> {
    let number = checked(token)?;
    let mut invocation = WRITE.prepare_invoke();
    invocation.key(fence_key(resource)).key(resource).arg(number);
    for argument in command.args_iter() {
        match argument {
            Arg::Simple(bytes) => invocation.arg(bytes),
            // The placeholder of a cursor, which begins at zero.
            _ => invocation.arg("0"),
        };
    }
    let (newest, reply): (Option<u64>, Value) = invocation.invoke(connection)?;
    match newest {
        Some(newest) => Err(FenceError::Stale(Stale::new(resource, token).with_newest(newest))),
        None => Ok(redis::from_redis_value(reply).map_err(RedisError::from)?),
    }
}

/// The key of the newest token of `resource`: `wheellock_fence:{resource}`, or
/// `wheellock_fence::resource` for a name with a hash tag.
///
/// A name with a `}` and without a hash tag, such as `a}b`, has no fence in the same slot: a
/// cluster refuses the write.
///
/// ```
/// use wheellock_fence::redis::fence_key;
///
/// assert_eq!(fence_key("balance"), "wheellock_fence:{balance}");
/// assert_eq!(fence_key("{account 7}:balance"), "wheellock_fence::{account 7}:balance");
/// ```
#[must_use]
pub fn fence_key(resource: &str) -> String {
    // The hash tag of Redis: the text between the first brace and the next closing brace.
    let tag = resource.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    if tag.is_some_and(|(tag, _)| !tag.is_empty()) {
        format!("wheellock_fence::{resource}")
    } else {
        format!("wheellock_fence:{{{resource}}}")
    }
}
