"""The name server, and the registration of a broker at name servers.

server start       → Registration        Listening
Registration       → NamesrvLink         Listening, BarrierForRegistrations
NamesrvLink        → Registration        Registered, Sent
Registration       → HaSlave, SlaveSync  MasterHaAddress, MasterClientAddress
Assignments        → Registration        AskForRoute, for a NamesrvLink
NamesrvLink        → Assignments         RouteAnswered
Namesrv            → RegistrationReader  ReadRegistration, PassOn
RegistrationReader → Namesrv             Began, TopicSlice, Ended, PassedOn
RegistrationReader → Namesrv             UnreadableRegistration
"""
