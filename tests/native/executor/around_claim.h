// Called by the pool's threads right before a claim and in the middle of it.
#pragma once

void around_claim();
