//! Environments of any other program: `process` speaks with a command over its standard input and output, `http` with a
//! server. Both send the messages of docs/environments/protocol.md.
//!
//! It knows messages and no task. What an environment shows is kept here after every answer, so that looking asks nobody.
//! Every wait has a limit, and a failure says who was asked what, what came, and how the program's error output ends.

mod message;
mod process;
mod server;

pub(crate) use process::SPEC as PROCESS;
pub(crate) use server::SPEC as HTTP;

use crate::rng::hash_bytes;
use crate::settings::Reader;
use crate::{Env, EnvError, Legend, Mode, Step};
use message::{Fields, Hello, Shown};
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The way to a program that plays.
trait Link: Send {
    /// Sends one message and returns what comes back. After an error the link is closed, and the next message opens it.
    fn exchange(&mut self, request: &Value, limit: Duration) -> Result<Value, String>;
    /// Whether messages go to a program that has said hello.
    fn is_open(&self) -> bool;
    /// Ends the program, or leaves it.
    fn close(&mut self);
    /// Who is asked: the command or the address.
    fn name(&self) -> String;
}

/// How long is waited, and how often a start is tried again.
#[derive(Clone, Copy, Debug)]
struct Limits {
    start: Duration,
    reset: Duration,
    step: Duration,
    restarts: usize,
}

impl Limits {
    fn read(reader: &mut Reader<'_>) -> Self {
        let mut seconds = |name: &str| Duration::from_secs_f64(reader.number(name, 0.001..=86_400.0));
        let (start, reset, step) = (seconds("start_seconds"), seconds("reset_seconds"), seconds("step_seconds"));
        Limits { start, reset, step, restarts: reader.integer("restarts", 0..=100) }
    }
}

/// The conversation with one program about one environment.
struct Talk {
    env_type: &'static str,
    link: Box<dyn Link>,
    limits: Limits,
    /// What the program is told of the environment that is wanted.
    settings: Value,
    /// The environment's name in messages: a server may play several.
    name: String,
    last_id: u64,
    hello: Option<Arc<Hello>>,
}

impl Talk {
    fn failed(&self, reason: String) -> EnvError {
        EnvError::Failed { env_type: self.env_type.to_owned(), reason }
    }

    /// Sends a message and returns the fields of its answer. An answer that breaks the protocol closes the link.
    fn ask(&mut self, op: &str, about: &str, fields: Value, limit: Duration) -> Result<Fields, EnvError> {
        let asked = format!("{} was asked to {op}{about}", self.link.name());
        self.last_id += 1;
        let mut request = json!({"id": self.last_id, "env": self.name, "op": op});
        if let (Some(request), Value::Object(fields)) = (request.as_object_mut(), fields) {
            request.extend(fields);
        }
        let answer = self.link.exchange(&request, limit).map_err(|why| self.failed(format!("{asked}: {why}")))?;
        match Fields::of(answer, self.last_id) {
            Ok(fields) => Ok(fields.asked(asked)),
            Err(why) => Err(self.broke(format!("{asked}: {why}"))),
        }
    }

    /// The program does not keep to the protocol: nothing more is asked of it.
    fn broke(&mut self, reason: String) -> EnvError {
        self.link.close();
        self.failed(reason)
    }

    /// Opens the link if it is not, and learns what is played there; it must be what was played there before.
    fn connect(&mut self) -> Result<Arc<Hello>, EnvError> {
        if let (true, Some(hello)) = (self.link.is_open(), &self.hello) {
            return Ok(hello.clone());
        }
        let fields = json!({"protocol": message::VERSION, "settings": self.settings});
        let said = self.ask("hello", "", fields, self.limits.start)?;
        let hello = Hello::read(&said).map_err(|why| self.broke(why))?;
        match &self.hello {
            Some(known) if **known != hello => {
                let name = self.link.name();
                Err(self.broke(format!("{name} introduced itself otherwise than at first: {hello:?}, not {known:?}")))
            }
            Some(known) => Ok(known.clone()),
            None => Ok(self.hello.insert(Arc::new(hello)).clone()),
        }
    }

    fn reset(&mut self, seed: u64, member: u64, mode: Mode) -> Result<Shown, EnvError> {
        let mode = mode_name(mode);
        let hello = self.connect()?;
        let fields = json!({"seed": seed, "member": member, "mode": mode});
        let said = self.ask("reset", &format!(" to seed {seed}"), fields, self.limits.reset)?;
        Shown::read(&said, &hello.actions).map_err(|why| self.broke(why))
    }

    fn step(&mut self, action: &str, before: &Shown) -> Result<(Step, Shown), EnvError> {
        if !self.link.is_open() {
            return Err(self.failed(format!("{} is gone, and with it the episode", self.link.name())));
        }
        let fields = json!({"action": action});
        let said = self.ask("step", &format!(" {}", message::shortened(action)), fields, self.limits.step)?;
        let read = Shown::read(&said, &before.actions).and_then(|shown| Ok((said.step(before, &shown)?, shown)));
        read.map_err(|why| self.broke(why))
    }
}

/// What each command or server said when it was first asked, so that 256 environments need not be started to be built.
static KNOWN: Mutex<BTreeMap<String, Arc<Hello>>> = Mutex::new(BTreeMap::new());

#[derive(Clone, Debug)]
struct Episode {
    seed: u64,
    member: u64,
    mode: Mode,
    /// The actions that were valid, from which the episode can be played again.
    actions: Vec<String>,
    shown: Shown,
}

/// An environment that another program plays.
pub struct Bridge {
    talk: RefCell<Talk>,
    hello: Arc<Hello>,
    episode: Option<Episode>,
}

impl Bridge {
    /// Introduces itself to a program, unless one of the same `key` is known already.
    fn new(
        key: String,
        env_type: &'static str,
        link: Box<dyn Link>,
        limits: Limits,
        settings: Value,
    ) -> Result<Self, EnvError> {
        let known = KNOWN.lock().ok().and_then(|known| known.get(&key).cloned());
        let name = server::fresh_name();
        let mut talk = Talk { env_type, link, limits, settings, name, last_id: 0, hello: known.clone() };
        let hello = match known {
            Some(hello) => hello,
            None => talk.connect()?,
        };
        if let Ok(mut known) = KNOWN.lock() {
            known.insert(key, hello.clone());
        }
        Ok(Bridge { talk: RefCell::new(talk), hello, episode: None })
    }

    fn env_type(&self) -> &'static str {
        self.talk.borrow().env_type
    }

    /// Plays a recorded episode again.
    fn replay(&mut self, saved: &Map<String, Value>) -> Result<Episode, EnvError> {
        let wrong = || EnvError::State {
            env_type: self.env_type(),
            reason: "it needs seed, member, mode and the list of actions".to_owned(),
        };
        let number = |name: &str| saved.get(name).and_then(Value::as_u64).ok_or_else(wrong);
        let mode = saved.get("mode").and_then(Value::as_str).and_then(mode_of).ok_or_else(wrong)?;
        let texts = saved.get("actions").and_then(Value::as_array).ok_or_else(wrong)?;
        let actions: Option<Vec<String>> = texts.iter().map(|text| text.as_str().map(str::to_owned)).collect();
        let (seed, member, actions) = (number("seed")?, number("member")?, actions.ok_or_else(wrong)?);
        let talk = self.talk.get_mut();
        let mut shown = talk.reset(seed, member, mode)?;
        if let Some(kept) = saved.get("kept") {
            let said = talk.ask("load_state", "", json!({"state": kept}), talk.limits.reset)?;
            shown = Shown::read(&said, &talk.connect()?.actions).map_err(|why| talk.broke(why))?;
        } else {
            for action in &actions {
                shown = talk.step(action, &shown)?.1;
            }
        }
        Ok(Episode { seed, member, mode, actions, shown })
    }
}

impl Env for Bridge {
    fn reset(&mut self, seed: u64, member: u64, mode: Mode) -> Result<(), EnvError> {
        self.episode = None;
        let talk = self.talk.get_mut();
        let mut tried = 0;
        let shown = loop {
            match talk.reset(seed, member, mode) {
                Ok(shown) => break shown,
                Err(error) if tried >= talk.limits.restarts => return Err(error),
                // A start leads to the same state however often it is tried, so it may be; a step may not.
                Err(_) => talk.link.close(),
            }
            tried += 1;
        };
        self.episode = Some(Episode { seed, member, mode, actions: Vec::new(), shown });
        Ok(())
    }

    fn observation(&self) -> String {
        self.episode.as_ref().map_or(String::new(), |episode| episode.shown.observation.clone())
    }

    fn step(&mut self, action: &str) -> Result<Step, EnvError> {
        let env_type = self.env_type();
        let mut episode = self.episode.take().ok_or(EnvError::NotReset { env_type })?;
        let (step, shown) = self.talk.get_mut().step(action, &episode.shown)?;
        episode.shown = shown;
        if step.valid {
            episode.actions.push(action.to_owned());
        }
        self.episode = Some(episode);
        Ok(step)
    }

    fn actions(&self) -> Option<Vec<String>> {
        self.episode.as_ref().map_or_else(|| self.hello.actions.clone(), |episode| episode.shown.actions.clone())
    }

    fn instruction(&self) -> String {
        self.hello.instruction.clone()
    }

    fn legend(&self) -> Legend {
        self.hello.legend.clone()
    }

    fn backend(&self) -> Option<String> {
        Some(format!("{}, played by {}", self.hello.name, self.talk.borrow().link.name()))
    }

    fn many_starts(&self) -> Option<bool> {
        Some(self.hello.many_starts)
    }

    fn state(&self) -> Value {
        let Some(Episode { seed, member, mode, actions, .. }) = &self.episode else { return Value::Null };
        let mut state = json!({"seed": seed, "member": member, "mode": mode_name(*mode), "actions": actions});
        let mut talk = self.talk.borrow_mut();
        if self.hello.keeps_state && talk.link.is_open() {
            let limit = talk.limits.step;
            // Where it cannot say, the episode can still be played again.
            if let Ok(kept) = talk
                .ask("state", "", json!({}), limit)
                .and_then(|mut said| said.take("state").map_err(|why| talk.broke(why)))
            {
                state["kept"] = kept;
            }
        }
        state
    }

    fn load_state(&mut self, state: &Value) -> Result<(), EnvError> {
        let wrong = |reason: String| EnvError::State { env_type: self.env_type(), reason };
        self.episode = match state {
            Value::Null => None,
            Value::Object(saved) => Some(self.replay(saved)?),
            _ => return Err(wrong("it must be a map".to_owned())),
        };
        Ok(())
    }

    fn state_hash(&self) -> u64 {
        let of = |shown: &Shown| shown.hash.unwrap_or_else(|| hash_bytes(shown.observation.bytes()));
        self.episode.as_ref().map_or(0, |episode| of(&episode.shown))
    }
}

fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Train => "train",
        Mode::Val => "val",
        Mode::Test => "test",
    }
}

fn mode_of(name: &str) -> Option<Mode> {
    [Mode::Train, Mode::Val, Mode::Test].into_iter().find(|mode| mode_name(*mode) == name)
}

#[cfg(test)]
mod tests;
