//! A house of the text adventure: what stands where, what can be done, and what doing it changes.
//!
//! It knows places, things and commands, and nothing of tasks, rewards or episodes.

use crate::Stream;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A kind of place that things lie on or in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaceKind {
    /// Its name.
    pub name: &'static str,
    /// It has a door, shut at first.
    pub has_door: bool,
    /// The fewest and the most in a house.
    pub count: [usize; 2],
}

const fn place(name: &'static str, has_door: bool, count: [usize; 2]) -> PlaceKind {
    PlaceKind { name, has_door, count }
}

/// The kinds of places, in the order in which they are listed.
pub const PLACES: [PlaceKind; 13] = [
    place("bed", false, [0, 1]),
    place("cabinet", true, [1, 2]),
    place("countertop", false, [1, 1]),
    place("desk", false, [1, 1]),
    place("diningtable", false, [0, 1]),
    place("drawer", true, [1, 2]),
    place("fridge", true, [1, 1]),
    place("garbagecan", false, [0, 1]),
    place("microwave", true, [1, 1]),
    place("shelf", false, [1, 1]),
    place("sidetable", false, [0, 1]),
    place("sinkbasin", false, [1, 1]),
    place("sofa", false, [0, 1]),
];

/// A kind of thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThingKind {
    /// Its name.
    pub name: &'static str,
    /// It can be heated and cooled.
    pub heats: bool,
    /// It can be cleaned.
    pub cleans: bool,
}

const fn thing(name: &'static str, heats: bool, cleans: bool) -> ThingKind {
    ThingKind { name, heats, cleans }
}

/// The lamp; it stays where it stands.
pub const LAMP: &str = "desklamp";

/// The kinds of things that can be taken.
pub const THINGS: [ThingKind; 20] = [
    thing("apple", true, true),
    thing("book", false, false),
    thing("bowl", true, true),
    thing("bread", true, false),
    thing("candle", false, false),
    thing("cellphone", false, false),
    thing("cup", true, true),
    thing("egg", true, true),
    thing("fork", false, true),
    thing("keychain", false, false),
    thing("knife", false, true),
    thing("lettuce", false, true),
    thing("mug", true, true),
    thing("newspaper", false, false),
    thing("pen", false, false),
    thing("plate", true, true),
    thing("potato", true, true),
    thing("spoon", false, true),
    thing("tomato", true, true),
    thing("watch", false, false),
];

/// A place of the house.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Index into [`PLACES`].
    pub kind: usize,
    /// From 1, among those of its kind.
    pub number: usize,
    /// What is in it can be seen and reached.
    pub is_open: bool,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", PLACES[self.kind].name, self.number)
    }
}

/// A thing of the house.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thing {
    /// Index into [`THINGS`].
    pub kind: usize,
    /// From 1, among those of its kind.
    pub number: usize,
    /// Index of the place where it lies; none if it is carried.
    pub at: Option<usize>,
    /// It was heated, and not cooled since.
    pub is_hot: bool,
    /// It was cooled, and not heated since.
    pub is_cool: bool,
    /// It was cleaned.
    pub is_clean: bool,
}

impl fmt::Display for Thing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", THINGS[self.kind].name, self.number)
    }
}

/// Something that can be done, with indices of places and things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// `go to PLACE`
    Go(usize),
    /// `open PLACE`
    Open(usize),
    /// `close PLACE`
    Close(usize),
    /// `take THING from PLACE`
    Take(usize),
    /// `put THING in/on PLACE`
    Put(usize),
    /// `use desklamp 1`
    UseLamp,
    /// `heat THING with PLACE`
    Heat(usize),
    /// `cool THING with PLACE`
    Cool(usize),
    /// `clean THING with PLACE`
    Clean(usize),
    /// `examine PLACE`
    ExaminePlace(usize),
    /// `examine THING`
    ExamineThing(usize),
    /// `inventory`
    Inventory,
    /// `look`
    Look,
}

/// A house, and who walks in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct House {
    /// The places, by kind and number.
    pub places: Vec<Place>,
    /// The things that can be taken, by kind and number.
    pub things: Vec<Thing>,
    /// Where the lamp stands.
    pub lamp_at: usize,
    /// The lamp is on.
    pub lamp_is_on: bool,
    /// The place that the agent stands at; none in the middle of the room.
    pub agent_at: Option<usize>,
}

impl House {
    /// Draws a house of 8 to 15 places that has as many things of each of the kinds `wanted` at least, none of them on
    /// a place of the kind `not_on`.
    pub fn draw(draws: &mut Stream, wanted: &[usize], not_on: Option<usize>) -> House {
        let mut counts = PLACES.map(|kind| kind.count[0] + draws.below(kind.count[1] - kind.count[0] + 1));
        if let Some(kind) = not_on {
            counts[kind] = counts[kind].max(1);
        }
        let mut places = Vec::new();
        for (kind, count) in counts.iter().enumerate() {
            let shut = PLACES[kind].has_door;
            places.extend((1..=*count).map(|number| Place { kind, number, is_open: !shut }));
        }
        let mut kinds = wanted.to_vec();
        let n_things = 10 + draws.below(11);
        while kinds.len() < n_things {
            kinds.push(draws.below(THINGS.len()));
        }
        kinds.sort_unstable();
        let mut things: Vec<Thing> = Vec::with_capacity(kinds.len());
        for kind in kinds {
            let number = 1 + things.iter().filter(|thing| thing.kind == kind).count();
            let free = |place: &Place| !(wanted.contains(&kind) && not_on == Some(place.kind));
            let choice: Vec<usize> = (0..places.len()).filter(|index| free(&places[*index])).collect();
            let at = Some(choice[draws.below(choice.len())]);
            things.push(Thing { kind, number, at, is_hot: false, is_cool: false, is_clean: false });
        }
        let lamp_at = places.iter().position(|place| PLACES[place.kind].name == "desk").unwrap_or(0);
        House { places, things, lamp_at, lamp_is_on: false, agent_at: None }
    }

    /// The index of the thing that is carried.
    pub fn carried(&self) -> Option<usize> {
        self.things.iter().position(|thing| thing.at.is_none())
    }

    fn here_is(&self, name: &str) -> Option<usize> {
        self.agent_at.filter(|place| PLACES[self.places[*place].kind].name == name)
    }

    /// All that can be done now, in a fixed order.
    pub fn commands(&self) -> Vec<Command> {
        let elsewhere = (0..self.places.len()).filter(|place| self.agent_at != Some(*place));
        let mut commands: Vec<Command> = elsewhere.map(Command::Go).collect();
        if let Some(here) = self.agent_at {
            let place = &self.places[here];
            if PLACES[place.kind].has_door {
                commands.push(if place.is_open { Command::Close(here) } else { Command::Open(here) });
            }
            let lying = || (0..self.things.len()).filter(|thing| self.things[*thing].at == Some(here));
            match self.carried() {
                None if place.is_open => commands.extend(lying().map(Command::Take)),
                Some(thing) => {
                    if place.is_open {
                        commands.push(Command::Put(thing));
                    }
                    let kind = THINGS[self.things[thing].kind];
                    let with = |name, can: bool| can && self.here_is(name).is_some();
                    commands.extend(with("microwave", kind.heats).then_some(Command::Heat(thing)));
                    commands.extend(with("fridge", kind.heats).then_some(Command::Cool(thing)));
                    commands.extend(with("sinkbasin", kind.cleans).then_some(Command::Clean(thing)));
                }
                None => {}
            }
            if here == self.lamp_at {
                commands.push(Command::UseLamp);
            }
            commands.push(Command::ExaminePlace(here));
        }
        commands.extend(self.carried().map(Command::ExamineThing));
        commands.extend([Command::Inventory, Command::Look]);
        commands
    }

    /// A command in words.
    pub fn say(&self, command: Command) -> String {
        let here = || self.agent_at.map_or(String::new(), |place| self.places[place].to_string());
        match command {
            Command::Go(place) => format!("go to {}", self.places[place]),
            Command::Open(place) => format!("open {}", self.places[place]),
            Command::Close(place) => format!("close {}", self.places[place]),
            Command::Take(thing) => format!("take {} from {}", self.things[thing], here()),
            Command::Put(thing) => format!("put {} in/on {}", self.things[thing], here()),
            Command::UseLamp => format!("use {LAMP} 1"),
            Command::Heat(thing) => format!("heat {} with {}", self.things[thing], here()),
            Command::Cool(thing) => format!("cool {} with {}", self.things[thing], here()),
            Command::Clean(thing) => format!("clean {} with {}", self.things[thing], here()),
            Command::ExaminePlace(place) => format!("examine {}", self.places[place]),
            Command::ExamineThing(thing) => format!("examine {}", self.things[thing]),
            Command::Inventory => "inventory".to_owned(),
            Command::Look => "look".to_owned(),
        }
    }

    /// The command that a text means, if it can be done now: any case, any spaces between words, and `move THING to PLACE`
    /// for `put THING in/on PLACE`.
    pub fn understand(&self, text: &str) -> Option<Command> {
        // Longer than any command is; a megabyte is not folded to find that out.
        let text = text.get(..200).filter(|_| text.len() > 200).unwrap_or(text);
        let mut words: Vec<String> = text.split_whitespace().map(str::to_lowercase).collect();
        if words.first().is_some_and(|word| word == "move") {
            words[0] = "put".to_owned();
            words.iter_mut().filter(|word| *word == "to").for_each(|word| *word = "in/on".to_owned());
        }
        let meant = words.join(" ");
        self.commands().into_iter().find(|command| self.say(*command) == meant)
    }

    /// Does what can be done, and tells what happened.
    pub fn perform(&mut self, command: Command) -> String {
        let said = self.say(command);
        match command {
            Command::Go(place) => {
                self.agent_at = Some(place);
                format!("You arrive at {}. {}", self.places[place], self.contents(place))
            }
            Command::Open(place) => {
                self.places[place].is_open = true;
                format!("You open the {}. {}", self.places[place], self.contents(place))
            }
            Command::Close(place) => {
                self.places[place].is_open = false;
                format!("You close the {}.", self.places[place])
            }
            Command::Take(thing) => {
                self.things[thing].at = None;
                format!("You {said}.")
            }
            Command::Put(thing) => {
                self.things[thing].at = self.agent_at;
                format!("You {said}.")
            }
            Command::UseLamp => {
                self.lamp_is_on = !self.lamp_is_on;
                format!("You turn the {LAMP} 1 {}.", if self.lamp_is_on { "on" } else { "off" })
            }
            Command::Heat(thing) | Command::Cool(thing) => {
                let heats = matches!(command, Command::Heat(_));
                (self.things[thing].is_hot, self.things[thing].is_cool) = (heats, !heats);
                format!("You {said}.")
            }
            Command::Clean(thing) => {
                self.things[thing].is_clean = true;
                format!("You {said}.")
            }
            Command::ExaminePlace(place) => self.contents(place),
            Command::ExamineThing(thing) => self.describe(thing),
            Command::Inventory => match self.carried() {
                Some(thing) => format!("You carry: a {}.", self.things[thing]),
                None => "You carry nothing.".to_owned(),
            },
            Command::Look => match self.agent_at {
                Some(place) => format!("You stand at {}. {}", self.places[place], self.contents(place)),
                None => self.overview(),
            },
        }
    }

    fn describe(&self, thing: usize) -> String {
        let thing = &self.things[thing];
        let states = [(thing.is_hot, "hot"), (thing.is_cool, "cool"), (thing.is_clean, "clean")];
        let states: Vec<&str> = states.iter().filter(|(is, _)| *is).map(|(_, word)| *word).collect();
        let states = if states.is_empty() { "nothing special about it".to_owned() } else { states.join(" and ") };
        format!("This is a {thing}: {states}.")
    }

    /// What is on a place or in it, as far as it can be seen.
    fn contents(&self, place: usize) -> String {
        if !self.places[place].is_open {
            return format!("The {} is closed.", self.places[place]);
        }
        let mut seen: Vec<String> =
            self.things.iter().filter(|thing| thing.at == Some(place)).map(|thing| format!("a {thing}")).collect();
        if place == self.lamp_at {
            seen.push(format!("a {LAMP} 1"));
        }
        let seen = if seen.is_empty() { "nothing".to_owned() } else { seen.join(", ") };
        match PLACES[self.places[place].kind].has_door {
            true => format!("The {} is open. In it you see {seen}.", self.places[place]),
            false => format!("On the {} you see {seen}.", self.places[place]),
        }
    }

    /// The room from its middle.
    pub fn overview(&self) -> String {
        let places: Vec<String> = self.places.iter().map(|place| format!("a {place}")).collect();
        format!("You are in the middle of a room. You see {}.", places.join(", "))
    }

    /// Whether the state could have come about by play, for states that were saved elsewhere.
    pub fn check(&self) -> Result<(), String> {
        let n = self.places.len();
        let kinds =
            self.places.iter().all(|p| p.kind < PLACES.len()) && self.things.iter().all(|t| t.kind < THINGS.len());
        let inside = self.things.iter().filter_map(|thing| thing.at).chain(self.agent_at).all(|place| place < n);
        let one_hand = self.things.iter().filter(|thing| thing.at.is_none()).count() <= 1;
        match kinds && inside && one_hand && self.lamp_at < n {
            true => Ok(()),
            false => Err("places, things and who carries them do not fit together".to_owned()),
        }
    }
}
