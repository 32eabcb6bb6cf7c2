//! What is asked in a house: the six kinds of tasks of ALFWorld, when one is done, and what to do next.
//!
//! It knows houses and nothing of episodes.

use super::house::{Command, House, PLACES, THINGS, Thing};
use crate::Stream;
use crate::rng::hash_bytes;
use serde::{Deserialize, Serialize};

/// The six kinds of tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Put a thing somewhere.
    Place,
    /// Hold a thing under the lamp.
    Light,
    /// Put a cleaned thing somewhere.
    Clean,
    /// Put a heated thing somewhere.
    Heat,
    /// Put a cooled thing somewhere.
    Cool,
    /// Put two things of a kind into one place.
    Two,
}

const KINDS: [Kind; 6] = [Kind::Place, Kind::Light, Kind::Clean, Kind::Heat, Kind::Cool, Kind::Two];

/// A task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Goal {
    /// Its kind.
    pub kind: Kind,
    /// Index of the kind of thing.
    pub thing: usize,
    /// Index of the kind of place; none under the lamp.
    pub place: Option<usize>,
}

/// One in so many pairs of a thing and a place is asked out of distribution only.
const RESERVED: u64 = 5;

impl Goal {
    /// Draws a task; `reserved` ones are those of the pairs that training never asks.
    pub fn draw(draws: &mut Stream, reserved: bool) -> Goal {
        loop {
            let kind = KINDS[draws.below(KINDS.len())];
            let goal = Goal { kind, thing: draws.below(THINGS.len()), place: Some(draws.below(PLACES.len())) };
            let goal = if kind == Kind::Light { Goal { place: None, ..goal } } else { goal };
            if goal.makes_sense() && goal.is_reserved() == reserved {
                return goal;
            }
        }
    }

    fn makes_sense(&self) -> bool {
        let thing = THINGS[self.thing];
        let place = self.place.map_or("", |place| PLACES[place].name);
        match self.kind {
            Kind::Place | Kind::Two => true,
            Kind::Light => !thing.heats && !thing.cleans,
            Kind::Clean => thing.cleans && place != "sinkbasin",
            Kind::Heat => thing.heats && place != "microwave",
            Kind::Cool => thing.heats && place != "fridge",
        }
    }

    fn is_reserved(&self) -> bool {
        let place = self.place.map_or("light", |place| PLACES[place].name);
        hash_bytes(format!("{} {place}", THINGS[self.thing].name).bytes()) % RESERVED == 0
    }

    /// The kinds of things that a house must have for it.
    pub fn wanted(&self) -> Vec<usize> {
        vec![self.thing; if self.kind == Kind::Two { 2 } else { 1 }]
    }

    /// The task in words.
    pub fn say(&self) -> String {
        let thing = THINGS[self.thing].name;
        let place = self.place.map_or("", |place| PLACES[place].name);
        match self.kind {
            Kind::Place => format!("put a {thing} in/on a {place}"),
            Kind::Light => format!("hold a {thing} under the light of the desklamp"),
            Kind::Clean => format!("clean a {thing} and put it in/on a {place}"),
            Kind::Heat => format!("heat a {thing} and put it in/on a {place}"),
            Kind::Cool => format!("cool a {thing} and put it in/on a {place}"),
            Kind::Two => format!("put two things of the kind {thing} in/on one {place}"),
        }
    }

    fn is_prepared(&self, thing: &Thing) -> bool {
        match self.kind {
            Kind::Clean => thing.is_clean,
            Kind::Heat => thing.is_hot,
            Kind::Cool => thing.is_cool,
            Kind::Place | Kind::Light | Kind::Two => true,
        }
    }

    /// Whether the task is done in this state of the house.
    pub fn is_done(&self, house: &House) -> bool {
        let of_kind = || house.things.iter().filter(|thing| thing.kind == self.thing);
        let Some(kind) = self.place else {
            return house.lamp_is_on
                && house.agent_at == Some(house.lamp_at)
                && of_kind().any(|thing| thing.at.is_none());
        };
        let needed = self.wanted().len();
        (0..house.places.len())
            .filter(|place| house.places[*place].kind == kind)
            .any(|place| of_kind().filter(|thing| thing.at == Some(place) && self.is_prepared(thing)).count() >= needed)
    }

    /// The scripted player's next command and why; it sees through doors.
    pub fn next(&self, house: &House) -> Option<(Command, String)> {
        let target = self.place.and_then(|kind| house.places.iter().position(|place| place.kind == kind));
        let Some(carried) = house.carried() else {
            let misplaced = |thing: &Thing| thing.at != target || !self.is_prepared(thing);
            let found = house.things.iter().position(|thing| thing.kind == self.thing && misplaced(thing))?;
            let at = house.things[found].at?;
            let why = format!("the {} is at {}", house.things[found], house.places[at]);
            return Some((reach(house, at, Command::Take(found)), why));
        };
        let thing = &house.things[carried];
        if thing.kind != self.thing {
            let at = house.agent_at.unwrap_or(0);
            return Some((reach(house, at, Command::Put(carried)), format!("the {thing} is not needed")));
        }
        let machine = |name: &str| house.places.iter().position(|place| PLACES[place.kind].name == name);
        let go_or = |place: usize, command| if house.agent_at == Some(place) { command } else { Command::Go(place) };
        let prepare = |name: &str, command| {
            machine(name).map(|place| (go_or(place, command), format!("the {thing} needs the {name}")))
        };
        match self.kind {
            Kind::Light => Some((go_or(house.lamp_at, Command::UseLamp), format!("the {thing} needs light"))),
            Kind::Clean if !thing.is_clean => prepare("sinkbasin", Command::Clean(carried)),
            Kind::Heat if !thing.is_hot => prepare("microwave", Command::Heat(carried)),
            Kind::Cool if !thing.is_cool => prepare("fridge", Command::Cool(carried)),
            _ => target.map(|place| {
                (reach(house, place, Command::Put(carried)), format!("the {thing} belongs to {}", house.places[place]))
            }),
        }
    }
}

/// The command, or what must be done before it at that place: going there, opening its door.
fn reach(house: &House, place: usize, command: Command) -> Command {
    match house.agent_at {
        Some(here) if here == place && house.places[place].is_open => command,
        Some(here) if here == place => Command::Open(place),
        _ => Command::Go(place),
    }
}
