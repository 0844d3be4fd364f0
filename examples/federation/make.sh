#!/bin/sh
# Make all parties' kits, and the silos' ledgers and rows, in the volumes of compose.yaml, once. For rehearsals only:
# in a real federation every party makes its own key.
set -eu
test ! -e /made/runner/kits || exit 0
umask 077
cd /tmp
fedpower study init study.toml --name survey --silos north,south,east \
    --codebook /examples/data/codebook.toml -k 2 --epsilon 1 --host coordinator
fedpower node ca-init study.toml -o kits --with-keys
signer=$(fedpower node key committee.pem)
fedpower study sign study.toml committee.pem
cp -r kits/coordinator/. /made/coordinator
for silo in north south east; do
    made=/made/$silo
    cp -r kits/$silo/. $made/kit
    cp -r kits/$silo/. /examples/data/$silo.csv $made/silo
    rm $made/silo/tls/party.key $made/kit/identity.pem
    cat >$made/silo/silo.toml <<END
silo = "$silo"

[data]
path = "$silo.csv"

[ledger]
path = "/ledger/$silo.ledger"
END
    # The operator of north is asked about every study; south and east approve by a rule what is signed.
    test $silo = north || printf '\n[approve]\nepsilon = 1.0\nsigned_by = ["%s"]\n' $signer >>$made/silo/silo.toml
    test -e $made/ledger/$silo.ledger \
        || fedpower ledger create $made/ledger/$silo.ledger --silo $silo --epsilon 3 --delta 1e-6
    chown -R 10001:10000 $made/silo $made/ledger
    chown -R 10002:10000 $made/kit
done
cp study.toml study.signatures committee.pem /made/runner
mkdir /made/runner/kits
cp -r kits/runner /made/runner/kits
chown -R 10002:10000 /made/coordinator /made/runner
