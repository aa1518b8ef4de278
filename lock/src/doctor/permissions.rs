//! Checks which commands, keys and channels the user may use.
//!
//! A user with minimal permissions may not query the user's own rights. So each command is sent
//! once, in a form without an effect: to a missing key, or with an invalid argument. The server
//! checks the permission first, and reports a missing permission.

use crate::doctor::diagnosis::{Check, CheckState};
use crate::model::name::LockName;
use crate::model::settings::{ReplicaAcks, Replicas};
use crate::ops::value::Value;

/// A script without an effect, which each client leaves in the server's cache on connecting.
pub(crate) const NO_OPERATION: &str = "return 1";

/// The purpose for which a permission is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Required to acquire or release any lock.
    Lock,
    /// Locks work without the permission, but slower or with less information.
    Comfort,
    /// Required by the remaining kinds of locks or by queries, but not by `Client::lock`.
    Other,
}

/// The environment in which a permission is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// With any server.
    Everywhere,
    /// In a cluster.
    Cluster,
    /// Behind sentinels, and where a grant waits for all connected replicas.
    Role,
    /// Where a grant waits for replicas.
    Acks,
    /// Where a grant waits for the replicas' files.
    AcksOnDisk,
    /// Where the server has sharded channels.
    Sharded,
}

/// A command that tests a permission, in a form without an effect.
#[derive(Debug)]
pub(crate) struct Probe {
    need: Need,
    place: Place,
    /// The command as in `ACL SETUSER`, without the `+`.
    verb: &'static str,
    /// The words after the verb. The key `KEY` holds a text, the key `NONE` is missing.
    arguments: &'static [&'static str],
}

/// The value of the key `KEY`: neither a number nor a list.
const TEXT: &str = "wheellock doctor";

/// The time to live of `KEY`, in milliseconds.
const LIFE: &str = "3000";

/// Returns a probe, needed everywhere, of a permission to acquire or release any lock.
const fn lock(verb: &'static str, arguments: &'static [&'static str]) -> Probe {
    Probe { need: Need::Lock, place: Place::Everywhere, verb, arguments }
}

/// Returns a probe, needed everywhere, of a permission for speed or information.
const fn comfort(verb: &'static str, arguments: &'static [&'static str]) -> Probe {
    Probe { need: Need::Comfort, place: Place::Everywhere, verb, arguments }
}

/// Returns a probe, needed everywhere, of a permission for other kinds of locks or queries.
const fn other(verb: &'static str, arguments: &'static [&'static str]) -> Probe {
    Probe { need: Need::Other, place: Place::Everywhere, verb, arguments }
}

/// Returns a probe needed only at `place`.
const fn at(place: Place, need: Need, verb: &'static str, words: &'static [&'static str]) -> Probe {
    Probe { need, place, verb, arguments: words }
}

/// All commands of the operations guide, except the commands that a connection needs. `SET` is
/// first, because the commands of [`ON_TEXT`] rely on its key.
const PROBES: &[Probe] = &[
    lock("set", &["KEY", TEXT, "PX", LIFE, "NX"]),
    lock("exists", &["NONE"]),
    lock("pttl", &["NONE"]),
    lock("hexists", &["NONE", "a"]),
    // A field without a value.
    lock("hset", &["NONE", "a", "1", "b"]),
    lock("pexpire", &["NONE", "1"]),
    lock("type", &["NONE"]),
    lock("get", &["NONE"]),
    lock("hget", &["NONE", "a"]),
    lock("hlen", &["NONE"]),
    lock("hstrlen", &["NONE", "a"]),
    comfort("hrandfield", &["NONE"]),
    comfort("ping", &[]),
    comfort("info", &["server"]),
    comfort("publish", &["CHANNEL", "0"]),
    at(Place::Role, Need::Lock, "role", &[]),
    at(Place::Acks, Need::Lock, "wait", &["0", "1"]),
    at(Place::AcksOnDisk, Need::Lock, "waitaof", &["0", "0", "1"]),
    at(Place::Cluster, Need::Lock, "asking", &[]),
    at(Place::Cluster, Need::Lock, "cluster|slots", &[]),
    at(Place::Cluster, Need::Comfort, "spublish", &["CHANNEL", "0"]),
    other("pubsub|numsub", &["CHANNEL"]),
    at(Place::Sharded, Need::Other, "pubsub|shardnumsub", &["CHANNEL"]),
    other("scan", &["0", "COUNT", "1"]),
    other("decrby", &["NONE", "no number"]),
    other("getrange", &["NONE", "0", "0"]),
    other("hdel", &["NONE", "a"]),
    other("hgetall", &["NONE"]),
    other("incrby", &["NONE", "no number"]),
    other("lindex", &["NONE", "0"]),
    other("lpos", &["NONE", "a"]),
    other("lrange", &["NONE", "0", "0"]),
    other("lrem", &["NONE", "0", "a"]),
    other("persist", &["NONE"]),
    other("strlen", &["NONE"]),
    other("zadd", &["NONE", "XX", "1", "a"]),
    other("zcard", &["NONE"]),
    other("zcount", &["NONE", "0", "0"]),
    other("zrange", &["NONE", "0", "0"]),
    other("zrem", &["NONE", "a"]),
    other("zremrangebyscore", &["NONE", "0", "0"]),
    other("zscore", &["NONE", "a"]),
];

/// Commands which would create a missing key, and fail on a text.
const ON_TEXT: &[Probe] =
    &[other("incr", &["KEY"]), other("decr", &["KEY"]), other("rpush", &["KEY", "a"])];

/// The last commands. The first deletes the text; a subscribed connection accepts no further
/// commands.
const LAST: &[Probe] = &[
    lock("del", &["KEY"]),
    comfort("subscribe", &["CHANNEL"]),
    comfort("unsubscribe", &["CHANNEL"]),
    at(Place::Cluster, Need::Comfort, "ssubscribe", &["CHANNEL"]),
    at(Place::Cluster, Need::Comfort, "sunsubscribe", &["CHANNEL"]),
];

/// The parts of the client's environment on which the needed permissions depend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) sentinel: bool,
    pub(crate) cluster: bool,
    pub(crate) replica_acks: Option<ReplicaAcks>,
    pub(crate) sharded_channels: bool,
}

impl Setting {
    /// Returns whether the environment is `place`.
    fn has(self, place: Place) -> bool {
        match place {
            Place::Everywhere => true,
            Place::Cluster => self.cluster,
            Place::Role => {
                let wanted = self.replica_acks.map(|acks| acks.wanted);
                self.sentinel || wanted == Some(Replicas::AllConnected)
            }
            Place::Acks => self.replica_acks.is_some_and(|acks| !acks.on_disk),
            Place::AcksOnDisk => self.replica_acks.is_some_and(|acks| acks.on_disk),
            Place::Sharded => self.sharded_channels,
        }
    }
}

/// A command to send, and the permissions that a refusal reports as missing.
#[derive(Debug)]
pub(crate) struct Question {
    need: Need,
    pub(crate) words: Vec<String>,
    /// The permission for the command.
    command: String,
    /// The permission for the command's key.
    key: String,
    /// The permission for the command's channel, if any.
    channel: Option<String>,
}

impl Question {
    /// Returns the missing permissions according to `reply`. The server checks the command first:
    /// if the command is refused, its channel counts as missing too.
    fn missing(&self, reply: &Value) -> Vec<&str> {
        let Value::Refusal { code, message } = reply else { return Vec::new() };
        if code != "NOPERM" {
            return Vec::new();
        }
        let channel = self.channel.as_deref();
        if message.contains("command") {
            channel.into_iter().chain([self.command.as_str()]).collect()
        } else if message.contains("channel") {
            channel.into_iter().collect()
        } else {
            vec![&self.key]
        }
    }

    /// Returns whether `reply` reports a missing permission.
    pub(crate) fn is_refused(&self, reply: &Value) -> bool {
        !self.missing(reply).is_empty()
    }
}

/// All questions about a user.
#[derive(Debug)]
pub(crate) struct Questions {
    /// The first question creates the text.
    pub(crate) first: Vec<Question>,
    /// Sent if this server has the text, or answers `MOVED`.
    pub(crate) on_text: Vec<Question>,
    /// The first question deletes the text. The connection accepts no command afterwards.
    pub(crate) last: Vec<Question>,
}

impl Questions {
    /// Returns the questions about the permissions needed in the environment `setting`. Nobody else
    /// may use the name `scratch`; `names` is the pattern of names which the user should be
    /// permitted.
    pub(crate) fn new(scratch: &LockName, names: &str, setting: Setting) -> Self {
        let key = scratch.as_str();
        let none = format!("{key}:none");
        let channel = scratch.channel();
        let question = |probe: &Probe| {
            let fill = |word: &&str| match *word {
                "KEY" => key.to_owned(),
                "NONE" => none.clone(),
                "CHANNEL" => channel.as_ref().to_owned(),
                word => word.to_owned(),
            };
            let words = probe.verb.split('|').map(str::to_owned);
            Question {
                need: probe.need,
                words: words.chain(probe.arguments.iter().map(fill)).collect(),
                command: format!("+{}", probe.verb),
                key: format!("~{names}"),
                channel: probe
                    .arguments
                    .contains(&"CHANNEL")
                    .then(|| "&redisson_lock__channel:*".to_owned()),
            }
        };
        // The keys and channels of `lock` and of the remaining kinds. The probe of a key is a
        // script without an effect, which every connected user may call.
        let is_there = |need, key: &str, pattern: &str| Question {
            need,
            words: ["eval", NO_OPERATION, "1", key].map(str::to_owned).to_vec(),
            command: "+eval".to_owned(),
            key: format!("~{pattern}"),
            channel: None,
        };
        let tells = |need, channel: &str, pattern: &str| Question {
            need,
            words: vec!["publish".to_owned(), channel.to_owned(), "doctor".to_owned()],
            command: "+publish".to_owned(),
            key: String::new(),
            channel: Some(format!("&{pattern}")),
        };
        let latch = "redisson_countdownlatch__channel__*";
        let others = [
            is_there(Need::Lock, key, names),
            is_there(Need::Lock, &channel, "redisson_lock__channel:*"),
            is_there(Need::Comfort, "wheellock_client:doctor", "wheellock_client:*"),
            tells(Need::Comfort, "wheellock_client:doctor", "wheellock_client:*"),
            is_there(Need::Lock, &scratch.request("doctor"), "wheellock_request:*"),
            is_there(Need::Other, &scratch.queue(), "redisson_lock_queue:*"),
            is_there(Need::Other, &scratch.queue_deadlines(), "redisson_lock_timeout:*"),
            is_there(Need::Other, &scratch.token(), "redisson_lock_token:*"),
            is_there(Need::Other, &scratch.permit_leases(), &format!("{{{names}")),
            is_there(Need::Other, &scratch.read_write_channel(), "redisson_rwlock:*"),
            is_there(Need::Other, &scratch.semaphore_channel(), "redisson_sc:*"),
            is_there(Need::Other, &scratch.latch_channel(), latch),
            tells(Need::Other, &scratch.read_write_channel(), "redisson_rwlock:*"),
            tells(Need::Other, &scratch.semaphore_channel(), "redisson_sc:*"),
            tells(Need::Other, &scratch.latch_channel(), latch),
        ];
        let here = PROBES.iter().filter(|probe| setting.has(probe.place));
        Self {
            first: here.map(question).chain(others).collect(),
            on_text: ON_TEXT.iter().map(question).collect(),
            last: LAST.iter().filter(|probe| setting.has(probe.place)).map(question).collect(),
        }
    }
}

/// The permissions a user lacks, each once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Missing {
    /// The user's name, if known.
    pub(crate) user: Option<String>,
    permissions: Vec<(Need, String)>,
}

impl Missing {
    /// Returns no missing permissions, for the user in the settings. The server may report a
    /// different name.
    pub(crate) fn of_user(user: Option<String>) -> Self {
        Self { user, permissions: Vec::new() }
    }

    /// Adds the permissions that are missing according to `replies`, one for each of `questions`.
    pub(crate) fn learn(&mut self, questions: &[Question], replies: &[Value]) {
        for (question, reply) in questions.iter().zip(replies) {
            for permission in question.missing(reply) {
                self.add(question.need, permission);
            }
        }
    }

    /// Adds the commands of `questions`, which could not be sent, as refused.
    pub(crate) fn add_all(&mut self, questions: &[Question]) {
        for question in questions {
            self.add(question.need, &question.command);
        }
    }

    /// Adds `permission` as missing, unless added before.
    fn add(&mut self, need: Need, permission: &str) {
        if !self.permissions.iter().any(|(_, known)| known == permission) {
            self.permissions.push((need, permission.to_owned()));
        }
    }

    /// Returns the missing permissions with a need for which `is_meant` is true, in one line;
    /// `None` if there are none.
    fn of(&self, is_meant: impl Fn(Need) -> bool) -> Option<String> {
        let mut meant: Vec<&str> = self
            .permissions
            .iter()
            .filter(|(need, _)| is_meant(*need))
            .map(|(_, permission)| permission.as_str())
            .collect();
        // Patterns first, as in the operations guide.
        meant.sort_by_key(|permission| permission.starts_with('+'));
        (!meant.is_empty()).then(|| meant.join(" "))
    }

    /// Returns the command that grants `permissions` to the user.
    fn line(&self, permissions: &str) -> String {
        format!("ACL SETUSER {} {permissions}", self.user.as_deref().unwrap_or("USER"))
    }

    /// Returns the check whether `Client::lock` works for the user, by the permissions missing so
    /// far.
    pub(crate) fn check_lock(&self) -> Check {
        const NAME: &str = "permissions";
        let Some(all) = self.of(|need| need != Need::Other) else {
            return Check::ok(NAME, format!("{} may use lock", self.who()));
        };
        let (state, found) = match self.of(|need| need == Need::Lock) {
            Some(needed) => (CheckState::Fail, format!("lock needs {needed}")),
            None => (CheckState::Warn, format!("lock works, and works better with {all}")),
        };
        Check::new(NAME, state, format!("{}: {found}", self.who()), Some(self.line(&all)))
    }

    /// Returns the check whether the remaining kinds of locks, status and list work for the user.
    pub(crate) fn check_others(&self) -> Check {
        const NAME: &str = "permissions_other";
        match self.of(|need| need == Need::Other) {
            None => Check::ok(NAME, format!("{} may use all kinds, status and list", self.who())),
            Some(all) => Check::warn(
                NAME,
                format!("{}: not all other kinds, status and list work", self.who()),
                self.line(&all),
            ),
        }
    }

    /// Returns the words for the user in a finding.
    fn who(&self) -> String {
        self.user.as_ref().map_or("this user".to_owned(), |user| format!("user {user}"))
    }
}
